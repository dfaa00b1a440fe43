"""What a factor of the work costs those who wait for it."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.diagnose.causes.prompt_work import PromptWork
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.evidence.series_window import Floats

# Factors of the seconds that each prompt needs, whoever else comes.
_WORK = ("slowness", "host_gap", "computed_share")
# Work that has surely grown by so much makes a wait as many times as long, whatever waits show yet.
_WORK_Z, _LEAST_MORE_WORK = 8.0, float(np.log(1.2))
# A mean over the last two blocks may be off by so many deviations of one.
_STRAYS = 1.5
# The host's part of the wait counts by itself where it always was, is a fifth of it at least, and
# users wait for half of what they were promised.
_LEAST_GAP, _STOOD, _LATE = float(np.log(1.25)), 0.5, 0.5
# What tells of such work, before it is known whose fault it is.
_SIGNS = ("slowness", "own_slowness", "mixed_cost", "host_gap", "computed_share")


def is_calm(view: ModelView, waits: Waits) -> bool:
    """Whether no factor of the work can cost anything: most models, most of the time.

    No wait is longer, and no work has surely grown by its past and its peers together.
    """
    if (waits.excess > 0).any() or (
        waits.onset < view.blocks("arrivals", waits.rows).shape[1]
    ).any():
        return False
    for name in _SIGNS:
        changed = view.changed(name, waits.rows)
        if (np.hypot(changed.shift.z, changed.apart_z) >= _WORK_Z).any():
            return False
    return not (_standing_gap_seconds(view, waits) > 0).any()


def cost_of(view: ModelView, waits: Waits, work: PromptWork, left: Floats, name: str) -> Floats:
    """What a factor costs at each engine: its part of what is too long about the wait.

    Steps that take twice as long for the same work make any wait for them twice as long, and
    queues more: that is the least, also where waits stray too far to show it yet. Where they show
    that they are not as long, it is what they may be longer by.
    """
    cost = left * work.part(name)
    if name not in _WORK:
        return cost
    grown = work.by_factor[name]
    surely = (grown.z >= _WORK_Z) & (grown.size >= _LEAST_MORE_WORK) & (left >= waits.excess)
    shift = view.changed("first_token", waits.rows).shift
    with np.errstate(divide="ignore", invalid="ignore"):
        longer = np.log(waits.now) - shift.before + _STRAYS * shift.deviation
    longer = np.clip(np.where(np.isfinite(longer), longer, np.inf), 0.0, grown.size)
    least = np.nan_to_num(waits.now) * -np.expm1(-longer)
    if name == "host_gap":
        least = np.where(surely, least, 0.0)
        least = np.maximum(least, _standing_gap_seconds(view, waits))
        surely = (grown.size > 0) & (left >= waits.excess)
    return np.where(surely, np.maximum(cost, least), cost)


def _standing_gap_seconds(view: ModelView, waits: Waits) -> Floats:
    """Of each wait the host's part, where it is large and was so all along; else 0.

    Nodes measure it: no past without it is needed to know what it costs.
    """
    shift = view.changed("host_gap", waits.rows).shift
    level = np.nan_to_num(shift.after)
    with np.errstate(invalid="ignore"):
        stood = ~(shift.before < _STOOD * level)
        late = waits.now >= _LATE * view.targets.ttft_seconds
    part = np.where((level >= _LEAST_GAP) & stood & late, -np.expm1(-level), 0.0)
    return np.asarray(np.nan_to_num(waits.now) * part)
