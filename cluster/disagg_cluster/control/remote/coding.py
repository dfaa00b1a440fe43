"""Converts between control requests and replies and the protobuf messages of the versioned proto.

Message fields are named like the JSON keys, so that both share one set of checks (`wire`). The
messages are built from the compiled `v1/control.binpb` at run time: generated code would bind us to
one version of protobuf.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from disagg_cluster.control.messages import VERBS, ControlReply, ControlRequest, name_of
from disagg_cluster.control.wire import (
    MOST_BYTES,
    VERSION,
    WireError,
    reply_from,
    reply_parts,
    request_from,
)

PACKAGE: Final = "disagg_node.control.v1"
SERVICE: Final = f"{PACKAGE}.Control"
REPLY_METADATA: Final = "disagg-node-reply-bin"

_ID = "request_id"
_MOST_TRAILING_BYTES = 4096
"""Of the 8 KiB of metadata that clients accept in total; base64 adds a third."""


@dataclass(frozen=True, slots=True)
class Rpc:
    """One method of the service: its name, its verb, whether it streams its replies.

    `changes`: it needs a request id chosen by the client.
    """

    name: str
    verb: str
    streams: bool = False
    changes: bool = False

    @property
    def path(self) -> str:
        """The path under which it is called."""
        return f"/{SERVICE}/{self.name}"


_STREAMED = ("watch", "restart", "drain", "reassign")
_READING = ("status", "watch", "explain")
METHODS: Final = {
    verb: Rpc(verb.capitalize(), verb, verb in _STREAMED, verb not in _READING) for verb in VERBS
}
"""One method per verb."""


def decode_call(method: Rpc, data: bytes, seconds_left: float | None) -> ControlRequest:
    """Decodes the bytes of a call, with the deadline of its client.

    Raises:
        WireError: Not a request, or invalid values.
    """
    if len(data) > MOST_BYTES:
        raise WireError((f"the request is longer than {MOST_BYTES} bytes",))
    try:
        message = _class(f"{method.name}Request").FromString(data)
    except Exception:  # noqa: BLE001 - protobuf's own error, whose module depends on its version
        raise WireError((f"the request is no {method.name}Request of {PACKAGE}",)) from None
    parts = {field.name: value for field, value in message.ListFields()}
    request_id = parts.pop(_ID, None if method.changes else "unnamed")
    parts |= {"version": VERSION, "verb": method.verb}
    if request_id is not None:
        parts["id"] = request_id
    if seconds_left is not None:
        # More than a day counts as no deadline; gRPC itself answers calls whose deadline has
        # passed.
        parts["deadline_seconds"] = min(max(seconds_left, 1e-3), 86_400.0)
    return request_from(parts)


def encode_call(request: ControlRequest) -> bytes:
    """The bytes of a call; its deadline is sent by gRPC."""
    method = METHODS[name_of(request.verb)]
    parts = {key: value for key, value in asdict(request.verb).items() if value is not None}
    parts |= {_ID: request.id, "wait": request.wait}
    return _encoded(f"{method.name}Request", parts)


def encode_answer(reply: ControlReply) -> bytes:
    """The bytes of a `Reply`."""
    return _answer(reply_parts(reply))


def encode_trailing(reply: ControlReply) -> bytes:
    """The bytes of a `Reply`, with as many of its lines as fit into metadata."""
    for most_lines in (64, 48, 32, 24, 16, 12, 8, 4, 2):
        data = _answer(reply_parts(reply, most_lines))
        if len(data) <= _MOST_TRAILING_BYTES:
            return data
    return _answer(reply_parts(reply, 1))


def encode_status(replies: list[ControlReply]) -> bytes:
    """The bytes of a `StatusReply` with all replies."""
    parts = list(map(reply_parts, replies))
    workers = [each["worker"] for each in parts if "worker" in each]
    node = {key: value for key, value in parts[-1].items() if key in ("daemon", "move")}
    return _encoded("StatusReply", node | {"workers": workers})


def decode_answer(data: bytes) -> ControlReply:
    """Decodes the bytes of a `Reply`; raises WireError if they are none."""
    parts = _parts("Reply", data)
    return reply_from(parts | {"version": VERSION, "id": parts.get(_ID, "")})


def decode_status(data: bytes, request_id: str) -> list[ControlReply]:
    """The replies in a `StatusReply`; raises WireError if the bytes are none."""
    parts = _parts("StatusReply", data)
    head = {"version": VERSION, "id": request_id}
    workers = [
        reply_from({**head, "outcome": "worker", "worker": worker})
        for worker in parts.get("workers", ())
    ]
    node = {"daemon": parts.get("daemon"), "move": parts.get("move")}
    return [*workers, reply_from({**head, "outcome": "done", **node})]


def _answer(parts: dict[str, Any]) -> bytes:
    return _encoded("Reply", parts | {_ID: parts["id"]})


def _encoded(name: str, parts: dict[str, Any]) -> bytes:
    from google.protobuf import json_format

    # Protobuf rejects unpaired surrogates, which an engine may print.
    text = json.dumps(parts, ensure_ascii=False).encode(errors="replace").decode()
    made = json_format.Parse(text, _class(name)(), ignore_unknown_fields=True)
    data: bytes = made.SerializeToString()
    return data


def _parts(name: str, data: bytes) -> dict[str, Any]:
    try:
        message = _class(name).FromString(data)
    except Exception:  # noqa: BLE001 - as above
        raise WireError((f"the answer is no {name} of {PACKAGE}",)) from None
    return _keys(message)


def _keys(message: Any) -> dict[str, Any]:
    """A message as a dictionary, without absent optional fields."""
    return {
        field.name: _plain(getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float):
        return value
    return _keys(value) if hasattr(value, "DESCRIPTOR") else list(map(_plain, value))


def _class(name: str) -> Any:
    return _classes()(name)


@cache
def _classes() -> Callable[[str], Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    compiled = (files(__package__) / "v1" / "control.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return cache(
        lambda name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{PACKAGE}.{name}")
        )
    )
