"""Protobuf messages of the versioned proto, from and to what the core is asked and answers.

Their fields have the names of the keys on the lines of JSON, so that one set of checks holds for
both (`wire`). The messages are made of the compiled `v1/control.binpb` at run time: no generated
code, which would tie us to one version of protobuf.
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
"""Of 8 KiB that clients take of all metadata; a third is added in base64."""


@dataclass(frozen=True, slots=True)
class Rpc:
    """One method of the service: its name, the verb it stands for, whether its answer is a stream.

    `changes`: it needs the caller's own request id.
    """

    name: str
    verb: str
    streams: bool = False
    changes: bool = False

    @property
    def path(self) -> str:
        """By which it is called."""
        return f"/{SERVICE}/{self.name}"


_STREAMED = ("watch", "restart", "drain", "reassign")
_READING = ("status", "watch", "explain")
METHODS: Final = {
    verb: Rpc(verb.capitalize(), verb, verb in _STREAMED, verb not in _READING) for verb in VERBS
}
"""By verb: each has one."""


def decode_call(method: Rpc, data: bytes, seconds_left: float | None) -> ControlRequest:
    """A request of the bytes of a call, with the deadline of its client.

    Raises:
        WireError: It is none, or wrong in itself.
    """
    if len(data) > MOST_BYTES:
        raise WireError((f"the request is longer than {MOST_BYTES} bytes",))
    try:
        message = _class(f"{method.name}Request").FromString(data)
    except Exception:  # noqa: BLE001 - protobuf's own error; which module has it depends on its version
        raise WireError((f"the request is no {method.name}Request of {PACKAGE}",)) from None
    parts = {field.name: value for field, value in message.ListFields()}
    request_id = parts.pop(_ID, None if method.changes else "unnamed")
    parts |= {"version": VERSION, "verb": method.verb}
    if request_id is not None:
        parts["id"] = request_id
    if seconds_left is not None:
        # Beyond a day is as good as none, and what is over is answered by gRPC itself.
        parts["deadline_seconds"] = min(max(seconds_left, 1e-3), 86_400.0)
    return request_from(parts)


def encode_call(request: ControlRequest) -> bytes:
    """The bytes of a call; its deadline goes with the call itself."""
    method = METHODS[name_of(request.verb)]
    parts = {key: value for key, value in asdict(request.verb).items() if value is not None}
    parts |= {_ID: request.id, "wait": request.wait}
    return _made(f"{method.name}Request", parts)


def encode_answer(reply: ControlReply) -> bytes:
    """The bytes of a `Reply`."""
    return _answer(reply_parts(reply))


def encode_trailing(reply: ControlReply) -> bytes:
    """The bytes of a `Reply` with so many of its lines as metadata may hold."""
    for most_lines in (64, 48, 32, 24, 16, 12, 8, 4, 2):
        data = _answer(reply_parts(reply, most_lines))
        if len(data) <= _MOST_TRAILING_BYTES:
            return data
    return _answer(reply_parts(reply, 1))


def encode_status(replies: list[ControlReply]) -> bytes:
    """The bytes of a `StatusReply`, of all that was answered."""
    parts = list(map(reply_parts, replies))
    workers = [each["worker"] for each in parts if "worker" in each]
    return _made("StatusReply", {"workers": workers, "daemon": parts[-1]["daemon"]})


def decode_answer(data: bytes) -> ControlReply:
    """A reply of the bytes of a `Reply`; raises WireError if it is none."""
    parts = _parts("Reply", data)
    return reply_from(parts | {"version": VERSION, "id": parts.get(_ID, "")})


def decode_status(data: bytes, request_id: str) -> list[ControlReply]:
    """The replies that a `StatusReply` stands for; raises WireError if it is none."""
    parts = _parts("StatusReply", data)
    head = {"version": VERSION, "id": request_id}
    workers = [
        reply_from({**head, "outcome": "worker", "worker": worker})
        for worker in parts.get("workers", ())
    ]
    return [*workers, reply_from({**head, "outcome": "done", "daemon": parts.get("daemon")})]


def _answer(parts: dict[str, Any]) -> bytes:
    return _made("Reply", parts | {_ID: parts["id"]})


def _made(name: str, parts: dict[str, Any]) -> bytes:
    from google.protobuf import json_format

    # Half a character, which an engine may print, is none to protobuf.
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
    """What a message says; what may be absent, and is, is left out."""
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
