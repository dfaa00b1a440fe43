"""What a pod may say of its steps: about itself whatever it likes, but not without bounds.

A pod is believed about its own engine; it can lie there and nowhere else. What would cost us
memory, or move what is computed over several engines, is turned away.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.model import Step, StreamKey
from disagg_exporter.steps.messages import StepEvent, StepRecords
from disagg_exporter.steps.rows import (
    ELAPSED_TOTALS,
    LARGEST,
    REST_OF_TOTALS,
    STEPS_TOTALS,
    Rows,
    rows_of,
)

# Ranks of one pod, and how often its engine may begin anew: at once, in the long run, ever.
MAX_RANKS = 64
STREAMS_AT_ONCE = 64
SECONDS_A_STREAM = 30.0
MAX_STREAMS = 1024

# A first prefill may take minutes; a stalled daemon hears of it late.
MAX_STEP_SECONDS = 600.0
OLDEST_SECONDS = 600.0
# The kernel's clock is one for all containers; this much is rounding.
AHEAD_SECONDS = 0.1

# Of time LARGEST, years of it: nanoseconds come to this within four months.
_LARGEST_COUNT = 1 << 53
_NOTHING = Step(0, 0, 0)
_COUNTED = (*STEPS_TOTALS, *REST_OF_TOTALS, "sequence")


class Gate:
    """Lets one pod's messages pass or turns them away.

    `refused` counts the latter; `flags` are the `wire` flags of the last that passed.
    """

    def __init__(self, now_ns: int) -> None:
        self._began_ns = now_ns
        self._streams: set[StreamKey] = set()
        self.refused = 0
        self.flags = 0

    def admitted(self, told: StepEvent, now_ns: int) -> StepEvent | None:
        """Return what of it may be passed on."""
        rows = told.rows if isinstance(told, StepRecords) else rows_of([told.step or _NOTHING])
        times = rows["t_ns"] if isinstance(told, StepRecords) else np.array([told.t_ns])
        sound = _sound(rows, times, now_ns)
        if not sound.any() or not self._has_room(told.key, now_ns):
            self.refused += len(rows)
            return None
        self.refused += int((~sound).sum())
        self.flags = told.flags
        return told._replace(rows=rows[sound]) if isinstance(told, StepRecords) else told

    def _has_room(self, key: StreamKey, now_ns: int) -> bool:
        if key in self._streams:
            return True
        lived_seconds = (now_ns - self._began_ns) / 1e9
        allowed = min(STREAMS_AT_ONCE + lived_seconds / SECONDS_A_STREAM, MAX_STREAMS)
        if key.engine_index >= MAX_RANKS or len(self._streams) >= allowed:
            return False
        self._streams.add(key)
        return True


def _sound(rows: Rows, t_ns: NDArray[np.int64], now_ns: int) -> NDArray[np.bool_]:
    age_seconds = (now_ns - t_ns) / 1e9
    sound = (age_seconds >= -AHEAD_SECONDS) & (age_seconds <= OLDEST_SECONDS)
    sound &= rows["elapsed_ns"] <= MAX_STEP_SECONDS * 1e9
    sound &= (rows["kv_usage_ratio"] >= 0.0) & (rows["kv_usage_ratio"] <= 1.0)
    for names, largest in ((_COUNTED, _LARGEST_COUNT), (ELAPSED_TOTALS, LARGEST - 1)):
        for name in names:
            sound &= rows[name] <= largest
    return np.asarray(sound, np.bool_)
