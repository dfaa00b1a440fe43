"""The load of the last minute, and the share of its capacity an engine uses (accounting A9)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import add, attrgetter, sub

from disagg_exporter.model import SECOND_NS, DecodeLimit, PrefillLimit, Role

WINDOW_NS = 60 * SECOND_NS
CONCLUDE_EVERY_NS = 5 * SECOND_NS
"""Limits change slowly; the load is measured every second."""


@dataclass(slots=True)
class LoadTally:
    """Sums over a stretch of time; stretches follow each other without gaps.

    `*_ns` are durations. `batch_ns` and `kv_ns` are a batch and a share of the cache times their
    duration; in `kv_unknown_ns` that share is not known. `paired_ns` is time from step to step with
    work pending, `worked_ns` the part of it inside the steps, `paired_steps` their number.
    `blocked_ns`: requests waited and a step admitted none of them.
    """

    length_ns: float = 0.0
    prefill_tokens: float = 0.0
    batch_ns: float = 0.0
    kv_ns: float = 0.0
    blocked_ns: float = 0.0
    waiting_ns: float = 0.0
    paired_ns: float = 0.0
    worked_ns: float = 0.0
    prefill_ns: float = 0.0
    prefill_steps: float = 0.0
    decode_tokens: float = 0.0
    decode_steps: float = 0.0
    steps: float = 0.0
    decode_ns: float = 0.0
    preemptions: float = 0.0
    paired_steps: float = 0.0
    kv_unknown_ns: float = 0.0

    def __iadd__(self, other: LoadTally) -> LoadTally:
        return LoadTally(*map(add, _ALL(self), _ALL(other)))


FIELDS = tuple(field.name for field in fields(LoadTally))
_ALL = attrgetter(*FIELDS)


class LoadWindow:
    """The consecutive tallies of the last minute; the oldest counts in part."""

    __slots__ = ("_kept", "_sums")

    def __init__(self) -> None:
        self._kept: deque[tuple[float, ...]] = deque()
        self._sums: list[float] = list(_ALL(LoadTally()))

    def add(self, tally: LoadTally) -> None:
        """Add the tally of the time since the previous one."""
        sums: tuple[float, ...] = _ALL(tally)
        self._kept.append(sums)
        self._sums = list(map(add, self._sums, sums))
        while self._sums[0] - self._kept[0][0] >= WINDOW_NS:
            self._sums = list(map(sub, self._sums, self._kept.popleft()))
            if min(self._sums) < 0:
                # Rounding may leave a slightly negative remainder.
                self._sums = [max(value, 0.0) for value in self._sums]

    @property
    def total(self) -> LoadTally:
        """The sums of the last minute, or of as much as there is."""
        over_ns = self._sums[0] - WINDOW_NS
        if over_ns <= 0:
            return LoadTally(*self._sums)
        part = over_ns / self._kept[0][0]
        sums = zip(self._sums, self._kept[0], strict=True)
        return LoadTally(*(max(a - part * b, 0.0) for a, b in sums))


LEAST_SECONDS = 3.0
"""Less time than this says nothing of a load, and a starting daemon does not wait for more."""
_NEGLIGIBLE = 0.01
_AVERAGED = attrgetter(
    *("prefill_tokens", "batch_ns", "blocked_ns", "waiting_ns"),
    *("decode_tokens", "decode_steps", "steps"),
)


@dataclass(frozen=True, slots=True)
class Load:
    """The load on an engine in the last minute, as a mean over its ranks.

    `batch` is the mean number of requests in decode steps, time without a step counting as 0.
    `kv_usage_ratio` is None where it was not known all the time.
    `blocked_ratio` is the share of time in which requests waited and a step could admit none,
    `waiting_ratio` that in which requests waited at all. `gap_ratio` is the host's share of the
    time from step to step, `prefill_ratio` that of prefill in step time, `prefill_step_tokens` the
    mean size of such steps; None where there were none.
    """

    prefill_tokens_per_second: float
    batch: float
    kv_usage_ratio: float | None
    blocked_ratio: float = 0.0
    waiting_ratio: float = 0.0
    preemptions: float = 0.0
    gap_ratio: float | None = None
    prefill_ratio: float | None = None
    prefill_step_tokens: float | None = None
    ranks: int = 1
    decode_tokens_per_second: float = 0.0
    decode_steps_per_second: float = 0.0
    steps_per_second: float = 0.0


def load_of(tallies: Iterable[LoadTally]) -> Load | None:
    """Return the load of an engine from its ranks' tallies; None until they cover some seconds."""
    known = [tally for tally in tallies if tally.length_ns >= LEAST_SECONDS * 1e9]
    if not known:
        return None
    paired_ns = sum(t.paired_ns for t in known)
    worked_ns = sum(t.worked_ns for t in known)
    prefill_ns = sum(t.prefill_ns for t in known)
    step_ns = prefill_ns + sum(t.decode_ns for t in known)
    steps = sum(t.prefill_steps for t in known)
    prefill_rate, batch, blocked, waiting, decode_rate, decode_steps_rate, steps_rate = _means(
        known
    )
    return Load(
        prefill_tokens_per_second=prefill_rate * 1e9,
        batch=batch,
        kv_usage_ratio=_kv_usage_ratio(known),
        blocked_ratio=blocked,
        waiting_ratio=waiting,
        preemptions=sum(t.preemptions for t in known),
        gap_ratio=max(1 - worked_ns / paired_ns, 0.0) if paired_ns else None,
        prefill_ratio=prefill_ns / step_ns if step_ns else None,
        ranks=len(known),
        decode_tokens_per_second=decode_rate * 1e9,
        decode_steps_per_second=decode_steps_rate * 1e9,
        steps_per_second=steps_rate * 1e9,
        prefill_step_tokens=sum(t.prefill_tokens for t in known) / steps if steps else None,
    )


def _kv_usage_ratio(tallies: Sequence[LoadTally]) -> float | None:
    """Return the mean over the ranks; None if it was unknown for longer than rounding explains."""
    if any(each.kv_unknown_ns > _NEGLIGIBLE * each.length_ns for each in tallies):
        return None
    return sum(each.kv_ns / each.length_ns for each in tallies) / len(tallies)


def _means(tallies: Sequence[LoadTally]) -> Sequence[float]:
    """Return each of `_AVERAGED` per nanosecond, as a mean over the ranks."""
    rates = [[each / tally.length_ns for each in _AVERAGED(tally)] for tally in tallies]
    if len(rates) == 1:
        return rates[0]
    return [sum(each) / len(rates) for each in zip(*rates, strict=True)]


def utilization(
    role: Role, load: Load, prefill: PrefillLimit | None, decode: DecodeLimit | None
) -> float | None:
    """Return how full an engine of a role is; None where a value that it needs is not known.

    If the batch is only known to be too large, the engine is known to be full; so is one whose
    cache is not known and that is full in another way.

    A mixed engine gives each step to both phases: prefill takes the share of its time that its
    tokens need at the knee, and the rest must suffice to decode within the target. Both shares
    together are 1 when it is full.
    """
    reading = writing = None
    if prefill is not None:
        reading = load.prefill_tokens_per_second / prefill.tokens_per_second
    if decode is not None and decode.requests is not None:
        writing = load.batch / decode.requests
    elif decode is not None and decode.below is not None and load.batch >= decode.below:
        writing = load.batch / decode.below
    match role:
        case Role.PREFILL:
            return reading
        case Role.DECODE if writing is not None:
            used = max(writing, load.blocked_ratio)
        case Role.MIXED if reading is not None and writing is not None:
            used = max(reading + writing, load.blocked_ratio)
        case _:
            return None
    if load.kv_usage_ratio is None:
        return used if used >= 1 else None
    return max(used, load.kv_usage_ratio)
