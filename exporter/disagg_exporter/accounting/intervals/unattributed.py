"""Device activity that no span explains, and the use of time in which nobody held the device.

Accounting A5 and A6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from disagg_exporter.accounting.intervals.intervals import Intervals
from disagg_exporter.accounting.intervals.rules import SECOND_NS
from disagg_exporter.accounting.intervals.timeline import REASONS
from disagg_exporter.model import Reason, Use

# A driver's utilisation is a mean over up to this long before the sample (nvidia-smi's manual
# says between 1/6 s and 1 s), so a sample this close after a span may still average over the span.
TRAIL_NS = SECOND_NS


class ActivitySample(NamedTuple):
    """A driver's busy ratio of a device in [start, end): 0 to 1."""

    start_ns: int
    end_ns: int
    busy_ratio: float


def mean_activity(devices: Sequence[Sequence[ActivitySample]]) -> tuple[ActivitySample, ...]:
    """Return the samples of an engine's devices as those of one: their sum over their number.

    The devices are read in one round, so the samples of one give the times for all. Devices
    without samples are left out.
    """
    known = [samples for samples in devices if samples]
    if len(known) <= 1:
        return tuple(known[0]) if known else ()
    busy_ns = [sum((s.end_ns - s.start_ns) * s.busy_ratio for s in of) for of in known]
    busiest = max(range(len(known)), key=busy_ns.__getitem__)
    # At most 1, but for rounding.
    factor = min(sum(busy_ns) / len(known) / (busy_ns[busiest] or 1.0), 1.0)
    return tuple(
        ActivitySample(s.start_ns, s.end_ns, s.busy_ratio * factor) for s in known[busiest]
    )


def unexplained(
    intervals: Intervals, samples: Sequence[ActivitySample], busy_until_ns: int
) -> Counter[Reason]:
    """Return the active nanoseconds inside idle intervals, by the interval's reason: a lower bound.

    A sample that touches a span, or that may still average over one, shows nothing.
    `busy_until_ns` is the end of the last span before the intervals.
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
    # Most lie in one interval, so this is gone through once or twice.
    for beyond in range(int((lasts - firsts)[known].max())):
        places = firsts[known] + beyond
        within = places < lasts[known]
        places, own = places[within], known[within]
        left_ns = np.maximum(starts_ns[own], edges_ns[places])
        right_ns = np.minimum(ends_ns[own], edges_ns[places + 1])
        active_ns = np.maximum(np.rint((right_ns - left_ns) * ratios[within]), 0).astype(np.int64)
        codes = intervals.reasons[places]
        for code in np.unique(codes):
            active[REASONS[code]] += int(active_ns[codes == code].sum())
    return active


def uses_of(
    reason: Reason, active_ns: int, quiet_ns: int, observed: bool
) -> tuple[tuple[Use, Reason, int], ...]:
    """Return (use, reason, length) of unheld time, for its active and its quiet part."""
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
