"""One device's time cut into intervals, each with its holders (A3) or the reason for none (A5).

Time without a holder is idle, except where the device was active: unattributed (A5, A6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from disagg_exporter.accounting.intervals.activity import TRAIL_NS, ActivitySample
from disagg_exporter.accounting.intervals.row_queue import Flags, Floats, Ints
from disagg_exporter.accounting.intervals.timeline import CODES, REASONS, WORK, Pieces
from disagg_exporter.model import Assignment, EngineState, Reason, Use

# Best explanation first, for an idle device that several engines share.
PRECEDENCE = (
    Reason.NO_RECORD,
    Reason.HOST_GAP,
    Reason.KV_WAIT,
    Reason.NO_REQUEST,
    Reason.DRAINING,
    Reason.STARTING,
    Reason.NO_ENGINE,
)

_UNKNOWN = -1
"""In place of a reason's code: nothing was received from the engine then."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """A period of a device's time, cut wherever one of its engines' timelines changes.

    Interval k lies from `edges_ns[k]` to `edges_ns[k + 1]`. Each row of `held`, `prefill_share`
    and `dummy_share` is one timeline of the engine in `engines`: whether it holds the device in
    each interval, and the shares of its work. Holders share an interval equally. `reasons` holds
    the code of the reason for having no holder.
    """

    edges_ns: Ints
    engines: tuple[str, ...]
    held: Flags
    prefill_share: Floats
    dummy_share: Floats
    reasons: Ints

    @property
    def lengths_ns(self) -> Ints:
        """The length of each interval."""
        lengths_ns: Ints = self.edges_ns[1:] - self.edges_ns[:-1]
        return lengths_ns

    @property
    def busy(self) -> Flags:
        """Whether any engine holds the device in each interval."""
        return np.equal(self.reasons, WORK)


def cut(
    start_ns: int,
    end_ns: int,
    engines: Mapping[str, Assignment],
    timelines: Sequence[tuple[str, Pieces]],
    *,
    absent: bool = False,
) -> Intervals:
    """Cut [start, end) at every boundary of any engine's pieces.

    `timelines` are the finalized pieces of the engines that may hold the device, each with its
    engine's name; where an engine has no piece, nothing was received from it. `absent`: no daemon
    ran, so the reason for having no holder is unknown.
    """
    bounds = [timeline[side] for _, timeline in timelines for side in ("start_ns", "end_ns")]
    # Each timeline's bounds are sorted, so a stable sort is fast; `np.unique` would hash them.
    edges = np.sort(np.concatenate([*bounds, [start_ns, end_ns]]), kind="stable")
    edges = edges[np.append(True, edges[1:] > edges[:-1]) & (edges >= start_ns) & (edges <= end_ns)]
    found = [_read(timeline, edges[:-1]) for _, timeline in timelines]
    reasons = np.array([timeline[0] for timeline in found]).reshape(len(timelines), len(edges) - 1)
    held = reasons == WORK
    names = tuple(engine for engine, _ in timelines)
    if absent:
        why = np.where(held.any(axis=0), WORK, CODES[Reason.NO_DAEMON])
    else:
        why = _why_idle(engines, names, reasons, held.any(axis=0))
    return Intervals(
        edges,
        names,
        held,
        np.array([timeline[1] for timeline in found]).reshape(held.shape),
        np.array([timeline[2] for timeline in found]).reshape(held.shape),
        why,
    )


def _read(timeline: Pieces, starts_ns: Ints) -> tuple[Ints, Floats, Floats]:
    """Return a timeline's reasons, prefill shares and dummy shares from these instants on."""
    if not len(timeline):
        unknown = np.full(len(starts_ns), _UNKNOWN)
        return unknown, np.zeros(len(starts_ns)), np.zeros(len(starts_ns))
    at = np.searchsorted(timeline["start_ns"], starts_ns, side="right") - 1
    there = (at >= 0) & (timeline["end_ns"][at] > starts_ns)
    reasons = np.where(there, timeline["reason"][at], _UNKNOWN)
    return reasons, timeline["prefill_share"][at], timeline["dummy_share"][at]


def _why_idle(
    engines: Mapping[str, Assignment], names: Sequence[str], reasons: Ints, held: Flags
) -> Ints:
    """Return why no engine holds the device in each interval; `WORK` where one does."""
    why = np.full(len(held), WORK)
    idle = np.flatnonzero(~held)
    # There are few distinct cases: they are numbered, timeline by timeline, and judged once each.
    cases = np.zeros(len(idle), np.int64)
    for timeline in reasons:
        cases = _renumbered(cases * (len(REASONS) + 1) + timeline[idle] - _UNKNOWN)
    places = np.zeros(cases.max(initial=-1) + 1, np.int64)
    places[cases] = idle
    judged = [CODES[_best_reason(engines, names, reasons[:, place])] for place in places]
    why[idle] = np.array(judged, np.int64)[cases]
    return why


def _renumbered(cases: Ints) -> Ints:
    """Return small numbers with the same distinctions, counted from 0 without gaps."""
    numbers: Ints = np.cumsum(np.bincount(cases) > 0) - 1
    return numbers[cases]


def _best_reason(engines: Mapping[str, Assignment], names: Sequence[str], codes: Ints) -> Reason:
    """Return the reason that best explains why no engine holds the device."""
    coded = zip(names, codes.tolist(), strict=True)
    reasons = {name: REASONS[code] for name, code in coded if code != _UNKNOWN}
    found = []
    for name, assignment in engines.items():
        match assignment.state:
            case EngineState.STARTING:
                found.append(Reason.STARTING)
            case EngineState.DRAINING:
                found.append(Reason.DRAINING)
            case _:
                found.append(reasons.get(name, Reason.NO_RECORD))
    return min(found, key=PRECEDENCE.index, default=Reason.NO_ENGINE)


def shared(intervals: Intervals) -> dict[str, tuple[int, int, int]]:
    """Return the (prefill, decode, dummy) ns of each engine; k holders get 1/k of an interval each.

    Exact to the nanosecond: the phases of all holders' parts sum to the interval.
    """
    sums: dict[str, tuple[int, int, int]] = {}
    for engine, parts in zip(intervals.engines, _parts(intervals), strict=True):
        prefill_ns, decode_ns, dummy_ns = (int(part.sum()) for part in parts)
        before = sums.get(engine, (0, 0, 0))
        sums[engine] = before[0] + prefill_ns, before[1] + decode_ns, before[2] + dummy_ns
    return sums


def _parts(intervals: Intervals) -> Iterator[tuple[Ints, ...]]:
    """Yield each timeline's prefill, decode and dummy nanoseconds, interval by interval."""
    lengths_ns, count = intervals.lengths_ns, np.maximum(intervals.held.sum(axis=0), 1)
    number = np.zeros_like(lengths_ns)
    timelines = zip(intervals.held, intervals.prefill_share, intervals.dummy_share, strict=True)
    for held, prefill_share, dummy_share in timelines:
        upto_ns = lengths_ns * (number + 1) // count
        own_ns = np.where(held, upto_ns - lengths_ns * number // count, 0)
        dummy_ns = np.rint(own_ns * dummy_share).astype(np.int64)
        prefill_ns = np.rint((own_ns - dummy_ns) * prefill_share).astype(np.int64)
        yield prefill_ns, own_ns - dummy_ns - prefill_ns, dummy_ns
        number += held


def unexplained(
    intervals: Intervals, samples: Sequence[ActivitySample], busy_until_ns: int
) -> Counter[Reason]:
    """Return the active nanoseconds in intervals without a holder, by reason: a lower bound.

    A sample that overlaps a span, or may still average over one, is ignored. `busy_until_ns` is
    the end of the last span before the intervals.
    """
    active: Counter[Reason] = Counter()
    edges_ns, starts_ns = intervals.edges_ns, np.array([s.start_ns for s in samples], np.int64)
    ends_ns = np.array([sample.end_ns for sample in samples], np.int64)
    trails_ns = np.minimum(starts_ns, ends_ns - TRAIL_NS)
    firsts = np.maximum(np.searchsorted(edges_ns[:-1], trails_ns, side="right") - 1, 0)
    lasts = np.searchsorted(edges_ns[:-1], ends_ns, side="left")
    busy = np.concatenate(([0], np.cumsum(intervals.busy)))
    touching = (busy[lasts] > busy[firsts]) | (trails_ns < busy_until_ns)
    known = np.flatnonzero(~touching & (firsts < lasts))
    if not len(known):
        return active
    ratios = np.array([sample.busy_ratio for sample in samples])[known]
    # Most lie in one interval, so this loop runs once or twice.
    for beyond in range(int((lasts - firsts)[known].max())):
        places = firsts[known] + beyond
        within = places < lasts[known]
        places, own = places[within], known[within]
        left_ns = np.maximum(starts_ns[own], edges_ns[places])
        right_ns = np.minimum(ends_ns[own], edges_ns[places + 1])
        active_ns = np.maximum(np.rint((right_ns - left_ns) * ratios[within]), 0).astype(np.int64)
        codes = intervals.reasons[places]
        for code in np.flatnonzero(np.bincount(codes)).tolist():
            active[REASONS[code]] += int(active_ns[codes == code].sum())
    return active


def uses_of(
    reason: Reason, active_ns: int, quiet_ns: int, observed: bool
) -> tuple[tuple[Use, Reason, int], ...]:
    """Return the (use, reason, length) of the active and quiet parts of time without a holder."""
    whole_ns = active_ns + quiet_ns
    match reason:
        case Reason.STARTING | Reason.DRAINING:
            return ((Use.IDLE, reason, whole_ns),)
        case Reason.NO_ENGINE if not observed:
            return ((Use.UNOBSERVED, Reason.NO_READING, whole_ns),)
        case Reason.NO_RECORD if observed:
            cause, quiet = Reason.NO_RECORD, Reason.NO_REQUEST
        case Reason.NO_RECORD | Reason.NO_DAEMON:
            return ((Use.UNOBSERVED, reason, whole_ns),)
        case _:
            cause, quiet = Reason.STRANGER, reason
    return (Use.UNATTRIBUTED, cause, active_ns), (Use.IDLE, quiet, quiet_ns)
