"""A ForwardPassMetrics message: bytes to what an engine says of one step.

The body is a MessagePack map by name (schema version 1; read from ai-dynamo 1.6.1 and sglang
0.5.23). Fields that we do not know are passed over, those that are missing are 0.
"""

from __future__ import annotations

import math

import msgspec

from disagg_exporter.errors import DisaggError

# A message has some 500 bytes. The room is for fields to come.
MAX_BODY_BYTES = 64 * 1024
KNOWN_VERSION = 1

# More than this is no count of tokens.
_LARGEST = 2**48
_LONGEST_SECONDS = 3600.0


class FpmError(DisaggError):
    """Bytes that are no message that could be believed; the text says why."""


class FpmVersionError(FpmError):
    """A message of a schema version that we have not read."""


class Scheduled(msgspec.Struct, frozen=True, gc=False):
    """What one step computed.

    `sum_prefill_tokens` are the prompt tokens computed in it, `sum_prefill_kv_tokens` those before
    them (cached, or computed in earlier chunks) that it had to read; `sum_decode_kv_tokens` is the
    context of all decoding requests together.
    """

    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    sum_prefill_kv_tokens: int = 0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0


class Queued(msgspec.Struct, frozen=True, gc=False):
    """The requests that were left waiting; those that decoded before were preempted."""

    num_prefill_requests: int = 0
    num_decode_requests: int = 0


class FpmMessage(msgspec.Struct, frozen=True, gc=False):
    """One step, or a sign of life: then all is 0.

    What `wall_time` (seconds) measures depends on who sends (`disagg_engine_step_clock_info`).
    """

    version: int = KNOWN_VERSION
    worker_id: str | int = ""
    dp_rank: int = 0
    wall_time: float = 0.0
    scheduled_requests: Scheduled = Scheduled()
    queued_requests: Queued = Queued()

    @property
    def idle(self) -> bool:
        """Whether nothing was scheduled."""
        done = self.scheduled_requests
        return not (self.wall_time or done.num_prefill_requests or done.num_decode_requests)


class _Version(msgspec.Struct, frozen=True, gc=False):
    version: int = 0


_decode = msgspec.msgpack.Decoder(FpmMessage).decode
_decode_version = msgspec.msgpack.Decoder(_Version).decode


def decode(body: bytes) -> FpmMessage:
    """Return what a body says.

    Raises:
        FpmVersionError: It is of another version, whatever its fields look like.
        FpmError: It is too large, no map of the known fields, or says what no step can.
    """
    if len(body) > MAX_BODY_BYTES:
        raise FpmError(f"the message is larger than {MAX_BODY_BYTES} bytes")
    try:
        message = _decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        _check_version(body)
        raise FpmError(f"the message cannot be read: {ascii(str(error))[:160]}") from None
    if message.version != KNOWN_VERSION:
        raise FpmVersionError(f"the message is of version {message.version}")
    _check(message)
    return message


def _check_version(body: bytes) -> None:
    try:
        version = _decode_version(body).version
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return
    if version != KNOWN_VERSION:
        raise FpmVersionError(f"the message is of version {version}")


def _check(message: FpmMessage) -> None:
    if not math.isfinite(message.wall_time) or not 0 <= message.wall_time <= _LONGEST_SECONDS:
        raise FpmError(f"no step takes {message.wall_time} s")
    if not 0 <= message.dp_rank < 2**16:
        raise FpmError(f"{message.dp_rank} is no rank")
    for part in (message.scheduled_requests, message.queued_requests):
        for name in part.__struct_fields__:
            count = getattr(part, name)
            if not 0 <= count <= _LARGEST:
                raise FpmError(f"{name} is {count}, which no count can be")
