"""The journal: what was written is read back, and anything else is rejected."""

import json
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disagg_cluster.daemon.stop import end_workers, left_behind
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.lifecycle.reassignment.progress import Patience, Reassignment
from disagg_cluster.lifecycle.state import (
    LaunchCommand,
    Lifecycle,
    Presence,
    WorkerIdentity,
    WorkerState,
)
from disagg_cluster.supervisor.journal.journal import Journal, here
from disagg_cluster.supervisor.journal.journal_text import (
    Assignments,
    Entry,
    JournalError,
    Where,
    decode,
    decode_whole,
    digest,
    encode,
)
from disagg_cluster.supervisor.ownership import adoption
from disagg_exporter.model import Role

HERE = Where(boot_id="b-1", pid_namespace="pid:[1]")
COMMAND = LaunchCommand(("/bin/engine", "--port", "1"), {"TOKEN": "secret"})
LIFE = Lifecycle(
    WorkerState.READY,
    Presence.RUNNING,
    generation=3,
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
    tag=WorkerIdentity(role=Role.DECODE, gpus=("GPU-1",), model_name="m", port=1),
    drain_seconds=30,
    stop_seconds=10,
)

lives = st.builds(
    Lifecycle,
    state=st.sampled_from([s for s in WorkerState if s is not WorkerState.STOPPED]),
    presence=st.sampled_from(list(Presence)),
    generation=st.integers(0, 2**31),
    since_ns=st.integers(0, 2**63),
    retry_ns=st.integers(0, 2**63),
    last_signal=st.sampled_from([None, signal.SIGTERM, signal.SIGKILL]),
    served=st.booleans(),
    restarts=st.integers(0, 1000),
    consecutive_crashes=st.integers(0, 10),
    crashes_ns=st.lists(st.integers(0, 2**63), max_size=5).map(tuple),
    paused_ns=st.none() | st.integers(0, 2**63),
    restarting=st.booleans(),
)


WRITTEN = (
    '{"version":1,"where":{"boot_id":"b-1","pid_namespace":"pid:[1]"},"workers":[{"worker":"w",'
    '"life":{"state":"backoff","presence":"leftover","incarnation":3,"since_ns":7,"retry_ns":9,'
    '"sent":15,"sent_ns":8,"up":null,"failed_probes":0,"failing_since_ns":0,"probe_why":"",'
    '"left_alone":false,"patient_until_ns":0,"served":true,"restarts":2,"streak":1,'
    '"crashes_ns":[1,2],"refusals":4,"paused_ns":6,"restarting":true},"pid":42,"start_ticks":99,'
    '"argv":["/bin/engine"],"environment":"ab","log_path":"/run/x/logs/w.log",'
    '"log_start_bytes":5,"started_timestamp_seconds":1.5,"tag":{"role":"decode",'
    '"gpus":["GPU-1"],"model_name":"m","host":"127.0.0.1","port":1,"ranks":1,'
    '"certificate_file":null},"drain_seconds":30.0,"stop_seconds":10.0,"in_front":false}]}\n'
)
"""A journal of version 1, as released daemons write it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.json"


@pytest.fixture
def journal(path: Path) -> Journal:
    return Journal(path, logging.getLogger("test"), where=HERE)


def test_the_keys_of_the_journal_format_are_stable() -> None:
    (entry,) = decode(WRITTEN, HERE)

    assert (entry.life.generation, entry.life.consecutive_crashes) == (3, 1)
    assert (entry.life.last_signal, entry.life.last_signal_ns) == (signal.SIGTERM, 8)
    assert encode(HERE, [entry]) == WRITTEN


@given(life=lives, pid=st.none() | st.integers(2, 2**22), gpus=st.lists(st.text(), max_size=3))
def test_a_written_entry_is_read_back_unchanged(
    life: Lifecycle, pid: int | None, gpus: list[str]
) -> None:
    tag = ENTRY.tag.model_copy(update={"gpus": tuple(gpus)})
    entry = ENTRY.model_copy(update={"life": life, "pid": pid, "tag": tag})

    assert decode(encode(HERE, [entry]), HERE) == (entry,)


def test_failed_probes_and_stopped_workers_are_not_recorded() -> None:
    failing = ENTRY.model_copy(update={"life": replace(LIFE, failed_probes=3, probe_why="503")})
    stopped = ENTRY.model_copy(update={"worker": "s", "life": Lifecycle()})

    assert decode(encode(HERE, [failing, stopped]), HERE) == (ENTRY,)


def test_no_environment_variable_is_in_the_journal() -> None:
    assert "secret" not in encode(HERE, [ENTRY])


def test_an_entry_matches_only_the_command_that_started_its_worker() -> None:
    assert ENTRY.runs(COMMAND)
    assert not ENTRY.runs(replace(COMMAND, env={"TOKEN": "other"}))
    assert not ENTRY.runs(replace(COMMAND, argv=("/bin/engine",)))


def test_a_journal_truncated_anywhere_is_rejected() -> None:
    text = encode(HERE, [ENTRY, ENTRY.model_copy(update={"worker": "v"})])

    for length in range(len(text.rstrip())):
        with pytest.raises(JournalError, match="torn or no journal"):
            decode(text[:length], HERE)


@given(position=st.integers(0, 10_000), byte=st.integers(32, 126))
def test_a_garbled_journal_is_rejected_or_read_without_any_other_error(
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
        ({"version": 3}, r"a newer disagg-node wrote it \(journal version 3\)"),
        ({"version": 3, "workers": "of another shape"}, "a newer disagg-node wrote it"),
        ({"version": 0}, "torn or no journal: version"),
        ({"where": {"boot_id": "b-0", "pid_namespace": "pid:[1]"}}, "before the last boot"),
        ({"where": {"boot_id": "b-1", "pid_namespace": "pid:[2]"}}, "in another container"),
        ({"more": 1}, "torn or no journal: more is not known here: a newer version's, perhaps"),
    ],
)
def test_a_journal_of_another_version_boot_or_container_is_rejected(
    change: dict[str, object], why: str
) -> None:
    file = json.loads(encode(HERE, [ENTRY])) | change

    with pytest.raises(JournalError, match=why):
        decode(json.dumps(file), HERE)


MOVE = Reassignment("id-1", "w", Role.DECODE, Role.PREFILL, 5, 6, Patience(), why="it says so")


def test_roles_drains_and_a_move_are_read_back_unchanged() -> None:
    said = Assignments(roles={"w": Role.PREFILL}, drained=("w",), move=MOVE)

    assert decode_whole(encode(HERE, [ENTRY], said), HERE) == ((ENTRY,), said)


def test_a_journal_without_assignments_is_readable_by_the_previous_version() -> None:
    assert encode(HERE, [ENTRY], Assignments()) == encode(HERE, [ENTRY])
    assert json.loads(encode(HERE, [ENTRY]))["version"] == 1
    assert "assignments" not in json.loads(encode(HERE, [ENTRY]))
    assert json.loads(encode(HERE, [ENTRY], Assignments(move=MOVE)))["version"] == 2


@pytest.mark.parametrize(("place", "named"), [((), "assignments.new"), (("move",), "new")])
def test_an_unknown_field_of_assignments_or_move_is_named_in_the_error(
    place: tuple[str, ...], named: str
) -> None:
    file = json.loads(encode(HERE, [ENTRY], Assignments(move=MOVE)))
    part = file["assignments"]
    for key in place:
        part = part[key]
    part["new"] = 1

    with pytest.raises(JournalError, match=rf"{named} is not known here: a newer version's"):
        decode_whole(json.dumps(file), HERE)


def test_a_worker_named_twice_is_refused() -> None:
    with pytest.raises(JournalError, match="names a worker twice"):
        decode(encode(HERE, [ENTRY, ENTRY]), HERE)


def test_manual_assignments_of_a_worker_are_dropped_with_its_entry(
    path: Path, journal: Journal
) -> None:
    journal.assignments = Assignments(roles={"w": Role.PREFILL}, drained=("w",), move=MOVE)
    journal.write([ENTRY])
    assert json.loads(path.read_text())["version"] == 2

    journal.write([ENTRY.model_copy(update={"life": Lifecycle()})])

    assert json.loads(path.read_text()) == {
        "version": 1,
        "where": json.loads(path.read_text())["where"],
        "workers": [],
    }


def test_the_journal_file_is_private_and_replaced_atomically_when_it_changes(
    path: Path, journal: Journal
) -> None:
    journal.write([ENTRY])
    first = path.stat()
    journal.write([ENTRY])
    assert path.stat().st_ino == first.st_ino

    journal.write([])
    assert path.stat().st_ino != first.st_ino
    assert first.st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["journal.json"]
    assert journal.read() == ()


def test_a_missing_journal_is_read_as_empty_without_logging(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    assert journal.read() == ()
    assert caplog.records == []


def test_an_untrusted_journal_is_logged_and_kept_aside(
    path: Path, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text('{"version": 1')

    assert journal.read() == ()
    assert "is not trusted: it is torn" in caplog.text
    assert path.with_name("journal.json.rejected").read_text() == '{"version": 1'
    assert not path.exists()


def test_a_failed_write_is_logged_once_shown_in_the_status_and_retried(
    path: Path, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    unfinished = path.with_name(".journal.json.part")
    unfinished.mkdir()
    for _ in range(3):
        journal.write([ENTRY])
        assert journal.status().success is False
    assert caplog.text.count("cannot write the journal") == 1
    assert "Is a directory" in caplog.text
    assert "Is a directory" in journal.unwritten

    unfinished.rmdir()
    ours = ENTRY.model_copy(update={"log_path": str(path.parent / "logs" / "w.log")})
    journal.write([ours])
    assert journal.status().success is True
    assert journal.unwritten == ""
    assert journal.read() == (ours,)


def test_an_argument_that_is_not_utf_8_fails_the_write_without_an_exception(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    journal.write([ENTRY.model_copy(update={"argv": ("/opt/caf\udce9",)})])

    assert journal.status().success is False
    assert "surrogates not allowed" in caplog.text


def test_a_journal_without_the_pause_fields_is_read() -> None:
    written = json.loads(encode(HERE, [ENTRY]))
    for key in ("paused_ns", "restarting"):
        del written["workers"][0]["life"][key]

    assert decode(json.dumps(written), HERE) == (ENTRY,)


def test_a_paused_worker_stays_in_the_journal_after_it_has_stopped() -> None:
    gone = replace(LIFE, state=WorkerState.STOPPED, presence=Presence.GONE)
    stopped = ENTRY.model_copy(update={"life": gone, "pid": None})
    paused = stopped.model_copy(update={"life": replace(gone, paused_ns=8)})

    assert decode(encode(HERE, [stopped]), HERE) == ()
    assert decode(encode(HERE, [paused]), HERE) == (paused,)


def written(path: Path, **changes: object) -> None:
    """Write a journal of this host with one worker, of which some fields are changed."""
    entry = ENTRY.model_copy(update={"log_path": str(path.parent / "logs" / "w.log")})
    file = json.loads(encode(HERE, [entry]))
    life = changes.pop("life", {})
    tag = changes.pop("tag", {})
    file["workers"][0] |= changes
    file["workers"][0]["life"] |= life
    file["workers"][0]["tag"] |= tag
    path.write_text(json.dumps(file))


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": 0},
        {"pid": -1},
        {"pid": 1},
        {"pid": 2**31},
        {"pid": 2**70},
        {"pid": True},
        {"start_ticks": -1},
        {"start_ticks": 2**63},
        {"start_ticks": 10**15},
        {"log_path": "/tmp/a\0b.log"},
        {"log_path": ""},
        {"log_path": "w.log"},
        {"log_path": "/etc/passwd"},
        {"log_path": "/var/log/syslog.log"},
        {"log_path": "{run}/lock"},
        {"log_path": "{run}/../w.log"},
        {"log_start_bytes": -1},
        {"log_start_bytes": 2**64},
        {"started_timestamp_seconds": float("nan")},
        {"drain_seconds": float("inf")},
        {"stop_seconds": -1.0},
        {"argv": ["a\0b"]},
        {"worker": "../w"},
        {"worker": ""},
        {"tag": {"port": -1}},
        {"tag": {"port": 65536}},
        {"tag": {"host": "nowhere"}},
        {"tag": {"ranks": 2**40}},
        {"life": {"sent": 19}},
        {"life": {"since_ns": 2**62}},
        {"life": {"retry_ns": 2**62}},
        {"life": {"retry_ns": 2**200}},
        {"life": {"incarnation": -1}},
        {"life": {"crashes_ns": [-5]}},
    ],
)
def test_a_journal_with_an_impossible_value_is_logged_and_kept_aside(
    path: Path, journal: Journal, caplog: pytest.LogCaptureFixture, changes: dict[str, object]
) -> None:
    if "log_path" in changes:
        changes = {"log_path": str(changes["log_path"]).replace("{run}", str(path.parent))}
    written(path, **changes)

    assert journal.read() == ()
    assert "is not trusted" in caplog.text
    assert path.with_name("journal.json.rejected").exists()
    assert not path.exists()


def test_a_relative_log_path_of_an_older_version_is_resolved_beside_the_journal(
    path: Path, journal: Journal
) -> None:
    written(path, log_path=".run/pair/logs/w.log")

    [entry] = journal.read()
    assert entry.log_path == str(path.parent / "logs" / "w.log")


def test_a_huge_or_deeply_nested_journal_is_read_as_empty(path: Path, journal: Journal) -> None:
    path.write_text("[" * 200_000)
    assert journal.read() == ()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert journal.read() == ()


def test_a_link_in_the_journals_place_is_not_followed(path: Path, journal: Journal) -> None:
    written(path)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))

    assert journal.read() == ()


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text()
    | st.sampled_from(["{log}", "/", "\0", "running", "ready", "gone", "leftover", "127.0.0.1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture
def nobody_is_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("somebody was signalled")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    monkeypatch.setattr(os, "killpg", refuse)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    fields=st.dictionaries(st.sampled_from(sorted(Entry.model_fields)), anything, max_size=4),
    life=st.dictionaries(st.sampled_from(sorted(Lifecycle.__slots__)), anything, max_size=3),
    pid=st.none() | st.integers(-2, 2**32),
    ticks=st.integers(-2, 2**64),
)
@pytest.mark.usefixtures("nobody_is_signalled")
def test_arbitrary_journal_contents_signal_no_process_and_raise_no_error(
    tmp_path: Path,
    fields: dict[str, object],
    life: dict[str, object],
    pid: int | None,
    ticks: int,
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir(mode=0o700, exist_ok=True)
    folder.lock.touch(mode=0o600)
    entry = ENTRY.model_copy(update={"log_path": str(folder.log("w"))})
    file = json.loads(encode(here(), [entry]))
    told = file["workers"][0]
    told |= {"pid": pid, "start_ticks": ticks} | fields
    if isinstance(told["life"], dict):
        told["life"] |= life
    text = json.dumps(file).replace("{log}", str(folder.log("w")))

    folder.journal.write_text(text)
    left_behind(folder)
    end_workers(folder, lambda _text: None)
    folder.journal.write_text(text)
    for found in Journal(folder.journal, logging.getLogger("test")).read():
        adoption.is_there(found)


def test_the_journal_is_written_to_the_current_place_of_the_locked_folder(tmp_path: Path) -> None:
    aside, theirs = tmp_path / "aside", tmp_path / "theirs"
    aside.mkdir()
    theirs.mkdir()
    (theirs / "journal.json").write_text("theirs")
    path, log = theirs / "journal.json", logging.getLogger("test")
    journal = Journal(path, log, where=HERE, at=lambda path: aside / path.name)
    journal.write([ENTRY])

    assert path.read_text() == "theirs"
    assert (aside / "journal.json").exists()
    assert not journal.is_in_place
