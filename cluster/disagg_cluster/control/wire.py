"""Requests and replies as lines of JSON, the same on every stream.

A request is one line, as is each reply; the last reply has `final: true`. Unknown keys in a request
are problems; unknown keys in a reply are ignored, as a newer daemon may send them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from disagg_cluster.config.values import Section
from disagg_cluster.control.messages import VERBS, ControlReply, ControlRequest, Verb, name_of
from disagg_cluster.host.foreign_json import parse_foreign
from disagg_exporter.errors import DisaggError, escaped
from disagg_exporter.model import Role

VERSION: Final = 1
MOST_BYTES: Final = 64 * 1024
"""Maximum length of a line, read or written."""

_MOST_TEXT = 300
_MOST_LINES = 64
_MOST_NAME = 100
_ID_PATTERN = r"^[!-~]{1,64}$"
_Id = Annotated[str, Field(pattern=_ID_PATTERN)]
# A worker's name must not break a log line.
_Worker = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,200}$")]
_REPLY = TypeAdapter(ControlReply)
_Deadline = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class WireError(DisaggError):
    """A line that is not a request or reply; `problems` lists everything wrong with it."""

    def __init__(self, problems: tuple[str, ...], request_id: str = "") -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.request_id = request_id


class _Head(Section):
    version: int
    id: _Id
    verb: str
    wait: bool = True
    deadline_seconds: _Deadline | None = None


class _Some(_Head):
    worker: _Worker | None = None


class _Restart(_Head):
    worker: _Worker
    drain: bool = True
    force: bool = False


class _One(_Head):
    worker: _Worker


class _Reassign(_One):
    role: Annotated[Role, Field(strict=False)]
    dry_run: bool = False
    drain_seconds: _Deadline | None = None


class _Reload(_Head):
    dry_run: bool = False
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")] | None = None
    force: bool = False


_SHAPES: dict[str, type[_Head]] = {
    "pause": _Some,
    "resume": _Some,
    "restart": _Restart,
    "reassign": _Reassign,
    "drain": _One,
    "explain": _One,
    "reload": _Reload,
    "status": _Head,
    "watch": _Head,
}


def encode_request(request: ControlRequest) -> bytes:
    """The request as one line.

    What is as usual is left out: a daemon of before knows what it was asked then.
    """
    verb = request.verb
    parts: dict[str, Any] = {"version": VERSION, "id": request.id, "verb": name_of(verb)}
    for field in fields(verb):
        if (value := getattr(verb, field.name)) != field.default:
            parts[field.name] = value
    if not request.wait:
        parts["wait"] = False
    if request.deadline_seconds is not None:
        parts["deadline_seconds"] = request.deadline_seconds
    return _line({key: value for key, value in parts.items() if value is not None})


def decode_request(line: bytes) -> ControlRequest:
    """Decodes a request; raises as `request_from`."""
    return request_from(_mapping(line, "request"))


def request_from(parts: Mapping[str, Any]) -> ControlRequest:
    """Builds a request from its keys.

    Raises:
        WireError: Not a request, an unknown version or verb, or invalid values.
    """
    request_id = parts.get("id")
    known_id = request_id if isinstance(request_id, str) and len(request_id) <= 64 else ""
    version, verb = parts.get("version"), parts.get("verb")
    if isinstance(version, int) and not isinstance(version, bool) and version != VERSION:
        why = f"version: {version} is not known here: this daemon speaks version {VERSION}"
        raise WireError((f"{why}; use the disagg-node that runs it",), known_id)
    if isinstance(verb, str) and verb not in _SHAPES:
        why = f"verb: {verb[:64]!r} is not known here; one of {', '.join(_SHAPES)}"
        raise WireError((why,), known_id)
    shape = _SHAPES[verb] if isinstance(verb, str) else _Head
    try:
        head = shape.model_validate(dict(parts))
    except ValidationError as error:
        wrong = error.errors()
        if not isinstance(verb, str):
            # Which other keys are allowed depends on the verb.
            wrong = [each for each in wrong if each["type"] != "extra_forbidden"]
        raise WireError(tuple(map(_problem, wrong)), known_id) from None
    return ControlRequest(head.id, _verb(head), head.wait, head.deadline_seconds)


def encode_reply(reply: ControlReply) -> bytes:
    """The reply as one line of at most `MOST_BYTES`."""
    line = _line(reply_parts(reply))
    if len(line) > MOST_BYTES:
        # Thousands of GPUs, or text in a multi-byte script: a shorter reply is better than none.
        parts = reply_parts(reply, most_lines=8)
        if "worker" in parts:
            parts["worker"]["gpus"] = []
        line = _line(parts)
    return line


def reply_parts(reply: ControlReply, most_lines: int = _MOST_LINES) -> dict[str, Any]:
    """The keys of a reply, without empty ones and with bounded texts.

    Problems and explanations have up to `most_lines` lines; one more says how many are left out.
    """
    parts: dict[str, Any] = {"version": VERSION, "id": reply.id, "outcome": reply.outcome.value}
    parts["final"] = reply.outcome.final
    for key in ("text", "way_out", "reason", "digest"):
        if text := getattr(reply, key):
            parts[key] = text[:_MOST_TEXT]
    if reply.problems:
        parts["problems"] = _bounded(reply.problems, most_lines)
    if reply.explanation:
        parts["explanation"] = _bounded(reply.explanation, most_lines)
    if reply.worker is not None:
        parts["worker"] = asdict(reply.worker) | {
            key: getattr(reply.worker, key)[:_MOST_TEXT]
            for key in ("reason", "unanswered", "cause")
        }
    if reply.daemon is not None:
        waiting = _bounded(reply.daemon.waiting, most_lines)
        parts["daemon"] = asdict(reply.daemon) | {"waiting": waiting}
    if reply.move is not None:
        parts["move"] = asdict(reply.move) | {"why": reply.move.why[:_MOST_TEXT]}
    return parts


def decode_reply(line: bytes) -> ControlReply:
    """Decodes a reply; raises as `reply_from`."""
    return reply_from(_mapping(line, "reply"))


def reply_from(parts: Mapping[str, Any]) -> ControlReply:
    """Builds a reply from its keys; ignores unknown keys of a newer daemon.

    Raises:
        WireError: Not a reply, or an unknown version.
    """
    if parts.get("version") != VERSION:
        raise WireError((f"version: {parts.get('version')!r} is not known here",))
    try:
        return _REPLY.validate_python(parts)
    except ValidationError as error:
        raise WireError((f"no reply of a daemon: {_problem(error.errors()[0])}",)) from None


def _verb(head: _Head) -> Verb:
    return VERBS[head.verb](**head.model_dump(exclude=set(_Head.model_fields)))


def _mapping(line: bytes, what: str) -> dict[str, Any]:
    if len(line) > MOST_BYTES:
        raise WireError((f"the {what} is longer than {MOST_BYTES} bytes",))
    try:
        parsed = parse_foreign(line)
    except ValueError:
        raise WireError((f"the {what} is no JSON",)) from None
    if not isinstance(parsed, dict):
        raise WireError((f"the {what} is no JSON object",))
    return parsed


def _bounded(lines: Sequence[str], most: int) -> list[str]:
    more = len(lines) - most
    shown = [line[:_MOST_TEXT] for line in lines[:most]]
    return [*shown, f"and {more} more"] if more > 0 else shown


def _line(parts: dict[str, Any]) -> bytes:
    return json.dumps(parts, separators=(",", ":")).encode() + b"\n"


def _problem(error: Any) -> str:
    # An unknown key is text chosen by the client, and it goes into the log.
    place = escaped(".".join(map(str, error["loc"]))[:_MOST_NAME])
    match error["type"]:
        case "missing":
            return f"{place}: is missing"
        case "extra_forbidden":
            return f"{place}: is not known here"
        case "string_pattern_mismatch" if place == "id":
            return f"{place}: must be 1 to 64 printable characters without spaces"
        case "string_pattern_mismatch":
            return f"{place}: must be 1 to 200 printable characters"
        case _:
            return f"{place}: {error['msg']}"
