"""The proto says what the lines of JSON say, and what is checked in is what it compiles to."""

import subprocess
import sys
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.control.messages import (
    VERBS,
    ControlReply,
    ControlRequest,
    DaemonStatus,
    ReplyOutcome,
    name_of,
)
from disagg_cluster.control.remote import coding
from disagg_cluster.control.remote.coding import METHODS
from disagg_cluster.control.views import DaemonView, MoveView, WorkerView
from disagg_cluster.control.wire import WireError
from disagg_cluster.lifecycle.state import WorkerState
from unit.cluster.control.test_wire import DAEMONS, MOVES, REPLIES, WORKERS
from unit.cluster.control.test_wire import VERBS as ANY_VERB

V1 = Path(coding.__file__).parent / "v1"
COMPILED = descriptor_pb2.FileDescriptorSet.FromString((V1 / "control.binpb").read_bytes()).file[0]
MESSAGES = {
    message.name: [field.name for field in message.field] for message in COMPILED.message_type
}


def test_the_checked_in_descriptor_is_what_the_proto_compiles_to(tmp_path: Path) -> None:
    made = tmp_path / "control.binpb"
    words = [sys.executable, "-m", "grpc_tools.protoc", f"-I{V1}", f"--descriptor_set_out={made}"]
    subprocess.run([*words, str(V1 / "control.proto")], check=True)

    assert descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file[0] == COMPILED


@pytest.mark.parametrize(
    ("message", "shown"),
    [("Worker", WorkerView), ("Daemon", DaemonView), ("Move", MoveView)],
)
def test_the_proto_has_every_field_of_the_views(message: str, shown: type) -> None:
    assert MESSAGES[message] == [field.name for field in fields(shown)]


def test_the_proto_has_every_verb_with_its_fields_and_every_key_of_a_reply() -> None:
    [service] = COMPILED.service
    streamed = {method.name: method.server_streaming for method in service.method}

    assert streamed == {method.name: method.streams for method in METHODS.values()}
    for verb, kind in VERBS.items():
        own = set(MESSAGES[METHODS[verb].name + "Request"]) - {"request_id", "wait"}
        assert own == {field.name for field in fields(kind)}
    keys = {field.name for field in fields(ControlReply)} - {"id"}
    assert set(MESSAGES["Reply"]) == keys | {"request_id", "final"}


@given(
    ANY_VERB, st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64)
)
def test_a_request_survives_encoding_and_decoding(verb: object, request_id: str) -> None:
    request = ControlRequest(request_id, verb)  # type: ignore[arg-type] # one of them
    method = next(METHODS[name] for name, kind in VERBS.items() if isinstance(verb, kind))

    got = coding.decode_call(method, coding.encode_call(request), None)

    assert got.verb == verb
    assert got.id == (request_id if method.changes else "unnamed")


@given(REPLIES)
def test_a_reply_survives_encoding_and_decoding(reply: ControlReply) -> None:
    assert coding.decode_answer(coding.encode_answer(reply)) == reply


@given(st.lists(WORKERS, max_size=4), DAEMONS, st.none() | MOVES)
def test_a_status_survives_encoding_and_decoding(
    workers: list[WorkerView], daemon: DaemonView, move: MoveView | None
) -> None:
    told = [ControlReply("r", ReplyOutcome.WORKER, worker=worker) for worker in workers]
    told.append(ControlReply("r", ReplyOutcome.DONE, daemon=daemon, move=move))

    assert coding.decode_status(coding.encode_status(told), "r") == told


@given(st.sampled_from(list(METHODS.values())), st.binary(max_size=200))
def test_any_bytes_decode_as_a_request_or_raise_a_wire_error(
    method: coding.Rpc, data: bytes
) -> None:
    with suppress(WireError):
        request = coding.decode_call(method, data, None)
        assert METHODS[name_of(request.verb)] is method
        assert 1 <= len(request.id) <= 64
        assert request.deadline_seconds is None


def test_the_grpc_deadline_becomes_the_deadline_of_the_request() -> None:
    call = coding.encode_call(ControlRequest("r", DaemonStatus()))

    for left, held in ((1.5, 1.5), (1e9, 86_400.0), (-1.0, 1e-3), (None, None)):
        assert coding.decode_call(METHODS["status"], call, left).deadline_seconds == held


def test_surrogate_characters_in_a_reason_are_replaced() -> None:
    worker = WorkerView("w", WorkerState.FAILED, reason="\udce9t\udce9")
    reply = ControlReply("r", ReplyOutcome.WORKER, worker=worker)

    told = coding.decode_answer(coding.encode_answer(reply)).worker
    assert told is not None
    assert told.reason == "?t?"
