"""One device's time cut into intervals, each with its holders (A3) or the reason for none (A5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from disagg_exporter.accounting.intervals.row_queue import Flags, Floats, Ints
from disagg_exporter.accounting.intervals.timeline import CODES, REASONS, WORK, Pieces
from disagg_exporter.model import Assignment, EngineState, Reason, Use

# What explains an idle device best, when several engines share it.
PRECEDENCE = (
    Reason.NO_RECORD,
    Reason.HOST_GAP,
    Reason.KV_WAIT,
    Reason.NO_REQUEST,
    Reason.DRAINING,
    Reason.STARTING,
    Reason.NO_ENGINE,
)

_HELD_USES = (Use.PREFILL, Use.DECODE, Use.UNATTRIBUTED)
_UNKNOWN = -1
"""In place of a reason's code: nothing was received of the engine there."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """A stretch of a device's time, cut wherever one of its engines' timelines changes.

    Interval k lies from `edges_ns[k]` to `edges_ns[k + 1]`. Each line of `held`, `prefill_share`
    and `dummy_share` is one timeline, of the engine in `engines`: whether it holds the device in
    an interval, and with what work; holders share it equally. `reasons` are the codes of why there
    are none.
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
        return np.diff(self.edges_ns)

    @property
    def busy(self) -> Flags:
        """Whether anybody holds the device in each interval."""
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

    `timelines` are the finalized pieces of those that hold the device, each with its engine; where
    an engine has no piece nothing was received of it. `absent`: no daemon ran, so that it is not
    known why a device was not held.
    """
    bounds = [timeline[side] for _, timeline in timelines for side in ("start_ns", "end_ns")]
    # Each timeline's are in order, which a stable sort is quick with; `np.unique` would hash them.
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
    """Return reason, prefill and dummy share of a timeline from each of these instants on."""
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
    """Return why nobody holds the device in each interval; `WORK` where somebody does."""
    why = np.full(len(held), WORK)
    idle = np.flatnonzero(~held)
    # Few cases differ: they are numbered, timeline by timeline, and each is judged once.
    cases = np.zeros(len(idle), np.int64)
    for timeline in reasons:
        _, cases = np.unique(cases * (len(REASONS) + 1) + timeline[idle], return_inverse=True)
    _, first, cases = np.unique(cases, return_index=True, return_inverse=True)
    judged = [_best_reason(engines, names, reasons[:, idle[place]]) for place in first]
    why[idle] = np.array([CODES[reason] for reason in judged], np.int64)[cases]
    return why


def _best_reason(engines: Mapping[str, Assignment], names: Sequence[str], codes: Ints) -> Reason:
    """Return the reason that explains best why no engine holds the device."""
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


class Uses(NamedTuple):
    """Nanoseconds of some stretches: by engine and use, or by the reason for no holder."""

    held: dict[tuple[str, Use], Floats]
    unheld: dict[Reason, Floats]


def shared(intervals: Intervals) -> dict[str, tuple[int, int, int]]:
    """Give each of k holders 1/k of every interval; (prefill, decode, dummy) ns of each engine.

    To the nanosecond: what k holders get of an interval, and the phases of each part, sum to it.
    """
    sums: dict[str, tuple[int, int, int]] = {}
    for engine, parts in zip(intervals.engines, _parts(intervals), strict=True):
        prefill_ns, decode_ns, dummy_ns = (int(part.sum()) for part in parts)
        before = sums.get(engine, (0, 0, 0))
        sums[engine] = before[0] + prefill_ns, before[1] + decode_ns, before[2] + dummy_ns
    return sums


def uses_within(intervals: Intervals, starts_ns: Sequence[int], ends_ns: Sequence[int]) -> Uses:
    """Return the uses within other stretches, so far as these lie within the intervals."""
    # Counted from the first interval on, so that a float tells them apart.
    edges = (intervals.edges_ns - intervals.edges_ns[0]).astype(np.float64)
    bounds = [np.asarray(side, np.int64) - intervals.edges_ns[0] for side in (starts_ns, ends_ns)]

    def inside(lengths: Floats) -> Floats:
        sums = np.concatenate(([0.0], np.cumsum(lengths)))
        first, last = (np.interp(side, edges, sums) for side in bounds)
        return np.asarray(np.maximum(last - first, 0.0), np.float64)

    held: dict[tuple[str, Use], Floats] = {}
    each_ns = intervals.lengths_ns / np.maximum(intervals.held.sum(axis=0), 1)
    for number, engine in enumerate(intervals.engines):
        own_ns = np.where(intervals.held[number], each_ns, 0.0)
        dummy_ns = own_ns * intervals.dummy_share[number]
        prefill_ns = (own_ns - dummy_ns) * intervals.prefill_share[number]
        parts = prefill_ns, own_ns - dummy_ns - prefill_ns, dummy_ns
        for use, part_ns in zip(_HELD_USES, parts, strict=True):
            if part_ns.any():
                held[engine, use] = held.get((engine, use), 0.0) + inside(part_ns)
    unheld = {
        REASONS[code]: inside(np.where(intervals.reasons == code, intervals.lengths_ns, 0.0))
        for code in np.unique(intervals.reasons[~intervals.busy])
    }
    return Uses(held, unheld)


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
