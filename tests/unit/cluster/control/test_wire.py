"""Requests and replies come through as they are; of what is none all problems are told at once."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disagg_cluster.control.messages import (
    ControlReply,
    ControlRequest,
    DaemonStatus,
    DrainWorker,
    ExplainWorker,
    PauseWorkers,
    ReassignWorker,
    ReplyOutcome,
    RereadNodeFile,
    RestartWorker,
    ResumeWorkers,
    WatchStatus,
)
from disagg_cluster.control.views import DaemonView, MoveView, WorkerView
from disagg_cluster.control.wire import (
    MOST_BYTES,
    WireError,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.model import Role
from support.collected import is_collected_in_json

IDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64)
NAMES = st.text(
    st.characters(exclude_categories=["C", "Zl", "Zp"]),  # nothing that ends a line
    min_size=1,
    max_size=40,
)

VERBS = st.one_of(
    st.builds(PauseWorkers, st.none() | NAMES),
    st.builds(ResumeWorkers, st.none() | NAMES),
    st.builds(RestartWorker, NAMES, st.booleans(), st.booleans()),
    st.builds(
        ReassignWorker,
        NAMES,
        st.sampled_from(Role),
        st.booleans(),
        st.none() | st.floats(0.001, 86_400),
    ),
    st.builds(DrainWorker, NAMES),
    st.builds(ExplainWorker, NAMES),
    st.builds(RereadNodeFile, st.booleans(), st.none() | st.just("0af9" * 8), st.booleans()),
    st.just(DaemonStatus()),
    st.just(WatchStatus()),
)
REQUESTS = st.builds(
    ControlRequest, IDS, VERBS, st.booleans(), st.none() | st.floats(0.001, 86_400)
)
WORKERS = st.builds(
    WorkerView,
    worker=NAMES,
    state=st.sampled_from(WorkerState),
    pid=st.none() | st.integers(1, 2**22),
    paused_seconds=st.none() | st.floats(0, 1e9),
    reason=st.text(max_size=300),
    gpus=st.lists(st.text(max_size=50), max_size=8).map(tuple),
    port=st.integers(0, 65535),
)
WORDS = st.text(max_size=50)
DAEMONS = st.builds(
    DaemonView,
    NAMES,
    st.integers(1, 2**22),
    NAMES,
    NAMES,
    st.floats(0, 1e9),
    st.booleans(),
    st.lists(WORDS, max_size=4).map(tuple),
)
MOVES = st.builds(MoveView, IDS, NAMES, WORDS, WORDS, WORDS, st.booleans(), st.text(max_size=300))
REPLIES = st.builds(
    ControlReply,
    IDS,
    st.sampled_from(ReplyOutcome),
    st.text(max_size=300),
    st.text(max_size=300),
    st.lists(st.text(max_size=50), max_size=5).map(tuple),
    st.none() | WORKERS,
    st.none() | DAEMONS,
    move=st.none() | MOVES,
    digest=WORDS,
)


def problems_of(told: Any) -> tuple[str, ...]:
    try:
        decode_request(json.dumps(told).encode())
    except WireError as error:
        return error.problems
    return ()


@given(REQUESTS)
def test_a_request_survives_encoding_and_decoding(request: ControlRequest) -> None:
    line = encode_request(request)

    assert line.count(b"\n") == 1
    assert decode_request(line) == request


@given(REPLIES)
def test_a_reply_survives_encoding_and_decoding(reply: ControlReply) -> None:
    line = encode_reply(reply)

    assert line.count(b"\n") == 1
    assert json.loads(line)["final"] is reply.outcome.final
    assert decode_reply(line) == reply


@given(st.binary(max_size=300))
@example(b'{"version":1,"id":"c","verb":"status"}')
def test_any_bytes_are_read_as_a_message_or_refused_with_a_wire_error(line: bytes) -> None:
    """The example is of no chance: hypothesis tries the literals of the code that it tests."""
    with suppress(WireError):
        request = decode_request(line)
        assert decode_request(encode_request(request)) == request
    with suppress(WireError):
        reply = decode_reply(line)
        assert decode_reply(encode_reply(reply)) == reply


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=10,
    ),
    st.sampled_from(["version", "id", "verb", "worker", "drain", "wait", "deadline_seconds"]),
)
def test_any_value_of_a_key_is_accepted_or_refused_with_the_key(value: Any, key: str) -> None:
    told = {"version": 1, "id": "1", "verb": "restart", "worker": "a", key: value}

    assert all(key in problem for problem in problems_of(told))


def test_all_problems_of_a_request_are_reported_at_once() -> None:
    told = {"version": 1, "id": "", "verb": "restart", "drain": "yes", "color": 1}

    assert problems_of(told | {"deadline_seconds": -1}) == (
        "id: must be 1 to 64 printable characters without spaces",
        "deadline_seconds: Input should be greater than 0",
        "worker: is missing",
        "drain: Input should be a valid boolean",
        "color: is not known here",
    )


def test_an_unknown_version_or_verb_is_refused_with_the_known_ones() -> None:
    told = {"id": "1", "verb": "pause"}

    assert problems_of(told | {"version": 2}) == (
        "version: 2 is not known here: this daemon speaks version 1; "
        "use the disagg-node that runs it",
    )
    assert problems_of({"version": 1, "id": "1", "verb": "reboot"}) == (
        "verb: 'reboot' is not known here; one of pause, resume, restart, reassign, drain, "
        "explain, reload, status, watch",
    )


@pytest.mark.parametrize("line", [b"[" * 50_000, b'{"a":' * 9_000, b"1", b"\xff\xfe", b"{}"])
def test_hostile_lines_are_refused(line: bytes) -> None:
    with pytest.raises(WireError):
        decode_request(line)
    with pytest.raises(WireError):
        decode_reply(line)


def test_nothing_is_finalized_at_the_depth_of_a_hostile_line() -> None:
    def read() -> None:
        with pytest.raises(WireError):
            decode_request(b"[" * 50_000)

    assert not is_collected_in_json(read)


@pytest.mark.parametrize("text", ["x\nERROR forged", "x\x1b[2J", "x\u2028y", "k" * 50_000])
@pytest.mark.parametrize("key", ["worker", "made up"])
def test_an_error_quotes_client_text_in_one_short_printable_line(text: str, key: str) -> None:
    parts = {"version": 1, "id": "a", "verb": "drain", "worker": "w"}
    parts |= {"worker": text} if key == "worker" else {text: 1}

    with pytest.raises(WireError) as refused:
        decode_request(json.dumps(parts).encode())

    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


def test_a_reply_never_exceeds_the_line_limit() -> None:
    gpus = tuple(f"GPU-{number:036d}" for number in range(4000))
    endless = "\u20ac" * 100_000
    worker = WorkerView("a" * 200, WorkerState.READY, reason=endless, gpus=gpus, unanswered=endless)
    long = ControlReply(
        "1", ReplyOutcome.WORKER, "\0" * 10_000, "x" * 99_999, ("y" * 9999,) * 99, worker
    )

    assert len(encode_reply(long)) <= MOST_BYTES


@pytest.mark.parametrize("said", ["problems", "explanation"])
def test_lines_left_out_of_a_reply_are_counted(said: str) -> None:
    lines: dict[str, Any] = {said: tuple(f"line {number}" for number in range(70))}

    whole = decode_reply(encode_reply(ControlReply("1", ReplyOutcome.DONE, **lines)))
    wide = {said: ("\u20ac" * 300,) * 70}
    cut = decode_reply(encode_reply(ControlReply("1", ReplyOutcome.DONE, **wide)))

    assert getattr(whole, said)[63:] == ("line 63", "and 6 more")
    assert getattr(cut, said)[8:] == ("and 62 more",)


def test_unknown_keys_of_a_newer_daemon_are_ignored() -> None:
    worker = WorkerView("a", WorkerState.READY)
    told = json.loads(encode_reply(ControlReply("1", ReplyOutcome.WORKER, worker=worker)))
    told["mood"] = "good"
    told["worker"]["mood"] = "good"

    assert decode_reply(json.dumps(told).encode()).worker == worker


@pytest.mark.parametrize(
    ("verb", "keys"),
    [
        (RestartWorker("a"), {"worker"}),
        (RestartWorker("a", drain=False, force=True), {"worker", "drain", "force"}),
        (RereadNodeFile(), set()),
        (RereadNodeFile(dry_run=True), {"dry_run"}),
    ],
)
def test_what_is_as_usual_is_not_sent_as_a_daemon_of_before_may_not_know_it(
    verb: RestartWorker | RereadNodeFile, keys: set[str]
) -> None:
    sent = json.loads(encode_request(ControlRequest("id", verb)))

    assert sent.keys() - {"version", "id", "verb"} == keys
