"""The journal: what is written comes back, and nothing else is believed."""

import json
import logging
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.command import Command
from disagg_cluster.journal import Journal
from disagg_cluster.journal_text import Entry, JournalError, Tag, Where, decode, digest, encode
from disagg_cluster.life import Life, Presence, WorkerState
from disagg_exporter.model import Role

HERE = Where(boot_id="b-1", pid_namespace="pid:[1]")
COMMAND = Command(("/bin/engine", "--port", "1"), {"TOKEN": "secret"})
LIFE = Life(
    WorkerState.READY,
    Presence.RUNNING,
    incarnation=3,
    since_ns=7,
    restarts=2,
    crashes_ns=(1, 2),
)
ENTRY = Entry(
    worker="w",
    life=LIFE,
    pid=42,
    start_ticks=99,
    argv=COMMAND.argv,
    environment=digest(COMMAND),
    log_path="/run/x/logs/w.log",
    log_start_bytes=5,
    started_timestamp_seconds=1.5,
    tag=Tag(role=Role.DECODE, gpus=("GPU-1",), model_name="m", port=1),
    drain_seconds=30,
    stop_seconds=10,
)

lives = st.builds(
    Life,
    state=st.sampled_from([s for s in WorkerState if s is not WorkerState.STOPPED]),
    presence=st.sampled_from(list(Presence)),
    incarnation=st.integers(0, 2**31),
    since_ns=st.integers(0, 2**63),
    retry_ns=st.integers(0, 2**63),
    sent=st.sampled_from([None, signal.SIGTERM, signal.SIGKILL]),
    served=st.booleans(),
    restarts=st.integers(0, 1000),
    streak=st.integers(0, 10),
    crashes_ns=st.lists(st.integers(0, 2**63), max_size=5).map(tuple),
    paused_ns=st.none() | st.integers(0, 2**63),
    restarting=st.booleans(),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.json"


@pytest.fixture
def journal(path: Path) -> Journal:
    return Journal(path, logging.getLogger("test"), where=HERE)


@given(life=lives, pid=st.none() | st.integers(1, 2**22), gpus=st.lists(st.text(), max_size=3))
def test_what_is_written_comes_back(life: Life, pid: int | None, gpus: list[str]) -> None:
    tag = ENTRY.tag.model_copy(update={"gpus": tuple(gpus)})
    entry = ENTRY.model_copy(update={"life": life, "pid": pid, "tag": tag})

    assert decode(encode(HERE, [entry]), HERE) == (entry,)


def test_probes_that_failed_and_workers_that_stopped_are_not_worth_a_line() -> None:
    failing = ENTRY.model_copy(update={"life": replace(LIFE, failed_probes=3, probe_why="503")})
    stopped = ENTRY.model_copy(update={"worker": "s", "life": Life()})

    assert decode(encode(HERE, [failing, stopped]), HERE) == (ENTRY,)


def test_no_variable_is_in_the_text() -> None:
    assert "secret" not in encode(HERE, [ENTRY])


def test_an_entry_knows_the_command_that_it_was_started_by() -> None:
    assert ENTRY.runs(COMMAND)
    assert not ENTRY.runs(replace(COMMAND, env={"TOKEN": "other"}))
    assert not ENTRY.runs(replace(COMMAND, argv=("/bin/engine",)))


def test_a_torn_journal_is_never_believed_wherever_it_was_torn() -> None:
    text = encode(HERE, [ENTRY, ENTRY.model_copy(update={"worker": "v"})])

    for length in range(len(text.rstrip())):
        with pytest.raises(JournalError, match="torn or no journal"):
            decode(text[:length], HERE)


@settings(max_examples=200)
@given(position=st.integers(0, 10_000), byte=st.integers(32, 126))
def test_a_garbled_journal_is_refused_or_read_but_never_an_accident(
    position: int, byte: int
) -> None:
    text = encode(HERE, [ENTRY])
    at = position % len(text)
    garbled = text[:at] + chr(byte) + text[at + 1 :]

    try:
        entries = decode(garbled, HERE)
    except JournalError:
        return
    assert all(isinstance(entry, Entry) for entry in entries)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, r"a newer disagg-node wrote it \(journal version 2\)"),
        ({"version": 2, "workers": "of another shape"}, "a newer disagg-node wrote it"),
        ({"version": 0}, "torn or no journal: version"),
        ({"where": {"boot_id": "b-0", "pid_namespace": "pid:[1]"}}, "before the last boot"),
        ({"where": {"boot_id": "b-1", "pid_namespace": "pid:[2]"}}, "in another container"),
        ({"more": 1}, "torn or no journal: more"),
    ],
)
def test_a_journal_of_another_time_or_place_is_refused(change: dict[str, object], why: str) -> None:
    file = json.loads(encode(HERE, [ENTRY])) | change

    with pytest.raises(JournalError, match=why):
        decode(json.dumps(file), HERE)


def test_a_worker_named_twice_is_refused() -> None:
    with pytest.raises(JournalError, match="names a worker twice"):
        decode(encode(HERE, [ENTRY, ENTRY]), HERE)


def test_the_file_is_private_and_replaced_whole(path: Path, journal: Journal) -> None:
    journal.write([ENTRY])
    first = path.stat()
    journal.write([ENTRY])
    assert path.stat().st_ino == first.st_ino

    journal.write([])
    assert path.stat().st_ino != first.st_ino
    assert first.st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["journal.json"]
    assert journal.read() == ()


def test_none_is_no_reason_to_complain(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    assert journal.read() == ()
    assert caplog.records == []


def test_one_that_is_not_trusted_is_said_and_kept_aside(
    path: Path, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text('{"version": 1')

    assert journal.read() == ()
    assert "is not trusted: it is torn" in caplog.text
    assert path.with_name("journal.json.rejected").read_text() == '{"version": 1'
    assert not path.exists()


def test_one_that_cannot_be_written_is_said_once_shown_and_tried_again(
    path: Path, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    unfinished = path.with_name(".journal.json.part")
    unfinished.mkdir()
    for _ in range(3):
        journal.write([ENTRY])
        assert journal.status().success is False
    assert caplog.text.count("cannot write the journal") == 1
    assert "Is a directory" in caplog.text

    unfinished.rmdir()
    journal.write([ENTRY])
    assert journal.status().success is True
    assert journal.read() == (ENTRY,)


def test_an_argument_that_is_no_text_is_said_and_ends_nothing(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    journal.write([ENTRY.model_copy(update={"argv": ("/opt/caf\udce9",)})])

    assert journal.status().success is False
    assert "surrogates not allowed" in caplog.text


def test_a_journal_from_before_there_were_pauses_is_adopted() -> None:
    written = json.loads(encode(HERE, [ENTRY]))
    for key in ("paused_ns", "restarting"):
        del written["workers"][0]["life"][key]

    assert decode(json.dumps(written), HERE) == (ENTRY,)


def test_a_paused_worker_stays_in_the_journal_when_it_is_stopped_and_gone() -> None:
    gone = replace(LIFE, state=WorkerState.STOPPED, presence=Presence.GONE)
    stopped = ENTRY.model_copy(update={"life": gone, "pid": None})
    paused = stopped.model_copy(update={"life": replace(gone, paused_ns=8)})

    assert decode(encode(HERE, [stopped]), HERE) == ()
    assert decode(encode(HERE, [paused]), HERE) == (paused,)
