"""ForwardPassMetrics messages: bytes to steps with running totals."""

from __future__ import annotations

import math

import msgspec

from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Step, StepTotals, StreamKey
from disagg_exporter.steps.rows import kind_of, tokens_of

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


# A number that is smaller than the last one by no more than this is a repetition; by more, its
# publisher counts anew.
REPEATED_WITHIN = 1024


class FpmStream:
    """One publisher's messages, numbered, counted and turned into steps.

    A message carries no totals, so they are kept here: what a gap has swallowed is in none of
    them, only counted as lost. A sign of life becomes a step that took no time and left nothing
    running, which is what it says. One that follows another has no number of its own, and is a
    heartbeat (`is_heartbeat`): it proves no rest, since publishers send it beside long steps, too.

    Args:
        engine: Our name of the engine.
        pid: The process above all of its own.
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

    def take(
        self, number: int, message: FpmMessage, t_ns: int, kv_cache_tokens: float | None = None
    ) -> Step | None:
        """Return the step of a message; None for one that came before.

        Args:
            number: Counted by the publisher, one up each message.
            message: What it says.
            t_ns: When it came, on CLOCK_MONOTONIC: it carries no time itself.
            kv_cache_tokens: What the engine's cache can hold, where that is known.
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
        # A request whose KV was transferred computes one token anew in its first step.
        recompute = 0 < done.sum_prefill_tokens == done.num_prefill_requests
        received = recompute and done.sum_prefill_kv_tokens > 0
        kv_tokens = done.sum_decode_kv_tokens + done.sum_prefill_kv_tokens + done.sum_prefill_tokens
        step = Step(
            t_ns=t_ns,
            elapsed_ns=round(message.wall_time * 1e9),
            sequence=self._sequence,
            context_requests=done.num_prefill_requests,
            context_tokens=done.sum_prefill_tokens,
            generation_requests=done.num_decode_requests,
            generation_tokens=done.num_decode_requests,
            # Whether a prompt ended is not said. Each chunk is taken for a prompt of its own, of
            # which all that came before was cached: it costs the same.
            computed_tokens=0 if received else done.sum_prefill_tokens,
            cached_tokens=0 if received else done.sum_prefill_kv_tokens,
            external_tokens=done.sum_prefill_kv_tokens if received else 0,
            running=done.num_prefill_requests + done.num_decode_requests,
            waiting=queued.num_prefill_requests + queued.num_decode_requests,
            kv_usage_ratio=min(kv_tokens / kv_cache_tokens, 1.0) if kv_cache_tokens else 0.0,
            # A rank that only keeps the others company: time, and no request.
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
