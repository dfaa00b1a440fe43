"""Decodes ForwardPassMetrics messages into steps with running totals."""

from __future__ import annotations

import math

import msgspec

from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Step, StepTotals, StreamKey
from disagg_exporter.steps.rows import kind_of, tokens_of

# A message has some 500 bytes; the rest allows for future fields.
MAX_BODY_BYTES = 64 * 1024
KNOWN_VERSION = 1

# Token counts above this are invalid.
_LARGEST = 2**48
_LONGEST_SECONDS = 3600.0


class FpmError(DisaggError):
    """Bytes that are no valid message; the text says why."""


class FpmVersionError(FpmError):
    """A message of an unsupported schema version."""


class Scheduled(msgspec.Struct, frozen=True, gc=False):
    """The work of one step.

    `sum_prefill_tokens` are the prompt tokens computed in it, `sum_prefill_kv_tokens` those before
    them (cached, or computed in earlier chunks) that it had to read; `sum_decode_kv_tokens` is the
    total context of all decoding requests.
    """

    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    sum_prefill_kv_tokens: int = 0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0


class Queued(msgspec.Struct, frozen=True, gc=False):
    """The requests left waiting; the decode ones among them were preempted."""

    num_prefill_requests: int = 0
    num_decode_requests: int = 0


class FpmMessage(msgspec.Struct, frozen=True, gc=False):
    """One step, or a heartbeat, in which everything is 0.

    What `wall_time` (seconds) measures depends on the sender (`disagg_engine_step_clock_info`).
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
    """Return a decoded message.

    Raises:
        FpmVersionError: It is of another version; its fields are not checked.
        FpmError: It is too large, not a map of the known fields, or has impossible values.
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
                raise FpmError(f"{name} is {count}, not a valid count")


# A number below the last one by up to this is a duplicate; by more, the publisher has restarted
# its count.
REPEATED_WITHIN = 1024


class FpmStream:
    """Turns one publisher's messages into numbered steps with totals.

    Messages carry no totals, so they are kept here: messages lost in a gap are in none of them,
    only counted as lost. A publisher's first heartbeat after work becomes a step of no length that
    leaves nothing running. Those that follow get no sequence number and count as heartbeats
    (`is_heartbeat`): they do not prove rest, since publishers send them during long steps too.

    Args:
        engine: Our name of the engine.
        pid: The engine's top process.
        rank: Its data-parallel rank.
    """

    def __init__(self, engine: str, pid: int, rank: int) -> None:
        self.key = StreamKey(engine, pid, 0, rank)
        self.lost = self.repeated = 0
        self._totals = StepTotals()
        self._number: int | None = None
        self._sequence = 0
        self._worker: str | int | None = None
        self._resting = self.is_heartbeat = False

    def ingest(
        self, number: int, message: FpmMessage, t_ns: int, kv_cache_tokens: float | None = None
    ) -> Step | None:
        """Return the step of a message; None for a duplicate.

        Args:
            number: The publisher's count, incremented with each message.
            message: The message.
            t_ns: When it arrived, on CLOCK_MONOTONIC: it has no timestamp.
            kv_cache_tokens: The capacity of the engine's cache, if known.
        """
        last = self._number
        if last is not None and message.worker_id == self._worker:
            if last - REPEATED_WITHIN <= number <= last:
                self.repeated += 1
                return None
            if number > last:
                self.lost += number - last - 1
                self._sequence += number - last - 1
                self._totals = self._totals._replace(drops=self.lost)
            else:
                self._begin_anew()
        elif last is not None:
            self._begin_anew()
        self._number, self._worker = number, message.worker_id
        queued = message.queued_requests
        resting = message.idle and not (queued.num_prefill_requests or queued.num_decode_requests)
        self.is_heartbeat, self._resting = resting and self._resting, resting
        self._sequence += not self.is_heartbeat
        return self._step(message, t_ns, kv_cache_tokens)

    def _begin_anew(self) -> None:
        self.key = self.key._replace(incarnation=self.key.incarnation + 1)
        self._totals, self._sequence, self._resting = StepTotals(), 0, False

    def _step(self, message: FpmMessage, t_ns: int, kv_cache_tokens: float | None) -> Step:
        done, queued = message.scheduled_requests, message.queued_requests
        # A request whose KV was transferred recomputes one token in its first step.
        recompute = 0 < done.sum_prefill_tokens == done.num_prefill_requests
        received = recompute and done.sum_prefill_kv_tokens > 0
        kv_tokens = done.sum_decode_kv_tokens + done.sum_prefill_kv_tokens + done.sum_prefill_tokens
        kv_usage_ratio = None if kv_tokens else 0.0  # of a cache of unknown size
        if kv_cache_tokens:
            kv_usage_ratio = min(kv_tokens / kv_cache_tokens, 1.0)
        step = Step(
            t_ns=t_ns,
            elapsed_ns=round(message.wall_time * 1e9),
            sequence=self._sequence,
            context_requests=done.num_prefill_requests,
            context_tokens=done.sum_prefill_tokens,
            generation_requests=done.num_decode_requests,
            generation_tokens=done.num_decode_requests,
            # Whether a prompt ended is not reported. Each chunk is treated as a prompt whose
            # earlier part was cached: it costs the same.
            computed_tokens=0 if received else done.sum_prefill_tokens,
            cached_tokens=0 if received else done.sum_prefill_kv_tokens,
            external_tokens=done.sum_prefill_kv_tokens if received else 0,
            running=done.num_prefill_requests + done.num_decode_requests,
            waiting=queued.num_prefill_requests + queued.num_decode_requests,
            kv_usage_ratio=kv_usage_ratio,
            # A filler step, which only accompanies other ranks' steps: time, but no request.
            dummy=not (message.idle or done.num_prefill_requests or done.num_decode_requests),
            decode_kv_tokens=done.sum_decode_kv_tokens,
        )
        if not message.idle:
            self._totals = _counted(self._totals, step)
        return step._replace(totals=self._totals)


def _counted(totals: StepTotals, step: Step) -> StepTotals:
    kind = kind_of(step)
    steps, elapsed_ns = list(totals.steps), list(totals.elapsed_ns)
    steps[kind] += 1
    elapsed_ns[kind] += step.elapsed_ns
    prefill, decode = tokens_of(step, kind)
    return totals._replace(
        steps=(steps[0], steps[1], steps[2], steps[3]),
        elapsed_ns=(elapsed_ns[0], elapsed_ns[1], elapsed_ns[2], elapsed_ns[3]),
        prefill_tokens=totals.prefill_tokens + prefill,
        decode_tokens=totals.decode_tokens + decode,
    )
