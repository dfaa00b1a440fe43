"""Factors of the work at engines that compute prompts, and what each adds to waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.diagnose.causes.prompt_work import PromptWork
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.verdict.values import Cause, RemedyKind

# Factors of the seconds that each prompt needs, independent of other requests.
_WORK = ("slowness", "host_gap", "computed_share")
# Work that has grown by so much at this z lengthens waits by its ratio, seen or not yet.
_WORK_Z, _LEAST_MORE_WORK = 8.0, float(np.log(1.2))
# A mean over the last two blocks may be off by so many deviations of one block.
_DEVIATIONS = 1.5
# A lasting host part of the wait counts by itself if it is at least a fifth of the wait and users
# wait for half of the target.
_LEAST_GAP, _STOOD, _LATE = float(np.log(1.25)), 0.5, 0.5
# Observations that show such work before its cause is known.
_SIGNS = ("slowness", "own_slowness", "mixed_cost", "host_gap", "computed_share")


@dataclass(frozen=True, slots=True)
class WorkFactor:
    """A factor and the cause that its growth means.

    `text` has a placeholder for the ratio of growth.
    """

    name: str
    cause: Cause
    text: str
    remedy: RemedyKind
    impairs_engine: bool = True
    """Whether the engine serves less because of it, so that others get its requests."""


WORK_FACTORS = (
    WorkFactor(
        "host_gap",
        Cause.HOST_BOUND,
        "steps with the host's gaps between them take {:.2f} times as long as the GPUs need",
        RemedyKind.MOVE_WORKER,
    ),
    WorkFactor(
        "computed_share",
        Cause.CACHE_COLLAPSE,
        "{:.2f} times as many tokens of a prompt are not found in the cache",
        RemedyKind.NONE,
    ),
    WorkFactor(
        "prompt_length",
        Cause.LONG_PROMPTS,
        "prompts there are {:.2f} times as long",
        RemedyKind.ROUTE_AWAY,
    ),
    WorkFactor(
        "prompt_spread",
        Cause.GIANTS,
        "prompt lengths vary {:.2f} times as much (squared)",
        RemedyKind.SET_BATCHED_TOKENS,
        impairs_engine=False,
    ),
    WorkFactor(
        "share",
        Cause.ROUTING,
        "it is given {:.2f} times its share of the requests",
        RemedyKind.ROUTE_AWAY,
        impairs_engine=False,
    ),
)


def is_calm(view: ModelView, waits: Waits) -> bool:
    """Whether no factor of the work can cost anything, as for most models most of the time.

    No wait is longer, and no growth of work is significant against past and peers together.
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
    """The cost of a factor at each engine: its part of the excess wait.

    Steps that take twice as long for the same work at least double the wait for them. That is the
    lower bound where waits are too noisy to show it yet, limited to what their noise allows.
    """
    cost = left * work.part(name)
    if name not in _WORK:
        return cost
    grown = work.by_factor[name]
    surely = (grown.z >= _WORK_Z) & (grown.size >= _LEAST_MORE_WORK) & (left >= waits.excess)
    shift = view.changed("first_token", waits.rows).shift
    with np.errstate(divide="ignore", invalid="ignore"):
        longer = np.log(waits.now) - shift.before + _DEVIATIONS * shift.deviation
    longer = np.clip(np.where(np.isfinite(longer), longer, np.inf), 0.0, grown.size)
    least = np.nan_to_num(waits.now) * -np.expm1(-longer)
    if name == "host_gap":
        least = np.where(surely, least, 0.0)
        least = np.maximum(least, _standing_gap_seconds(view, waits))
        surely = (grown.size > 0) & (left >= waits.excess)
    return np.where(surely, np.maximum(cost, least), cost)


def _standing_gap_seconds(view: ModelView, waits: Waits) -> Floats:
    """The host's part of each wait, where it is large and has always been; else 0.

    Nodes measure it, so its cost is known without a past.
    """
    shift = view.changed("host_gap", waits.rows).shift
    level = np.nan_to_num(shift.after)
    with np.errstate(invalid="ignore"):
        stood = ~(shift.before < _STOOD * level)
        late = waits.now >= _LATE * view.targets.ttft_seconds
    part = np.where((level >= _LEAST_GAP) & stood & late, -np.expm1(-level), 0.0)
    return np.asarray(np.nan_to_num(waits.now) * part)
