"""Causes at the engines that compute prompts: what grew about their work, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.diagnose.causes.batch_limits import batch_limits
from disagg_cluster.planner.diagnose.causes.kv_room import kv_full
from disagg_cluster.planner.diagnose.causes.overload import is_overloaded
from disagg_cluster.planner.diagnose.causes.prompt_work import PromptWork, prompt_work
from disagg_cluster.planner.diagnose.causes.slow_steps import why_slow
from disagg_cluster.planner.diagnose.causes.suspicion import ActionAdvice, Suspicion
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence, RemedyKind
from disagg_exporter.model import Role

# Of engines that a factor befalls, those that pay less than this part of what the worst pays are
# left out of its finding.
_LEAST_PART = 0.2
# A pool as a whole is befallen if all but so many of its engines are.
_POOL_SHARE = 0.99


def prompt_suspicions(view: ModelView, waits: Waits) -> Iterator[Suspicion]:
    """What makes the waits at entry engines too long, as far as their work tells."""
    rows, role = waits.rows, _role(view, waits.rows)
    if not len(rows):
        return
    work = prompt_work(view, waits)
    limits = batch_limits(view, waits)
    full = kv_full(view, waits)
    # What a limit holds back is no work that grew: it takes the excess of its engines first.
    bound = np.zeros(len(rows))
    for found in (*limits, *full):
        bound = np.maximum(bound, (found.cost_seconds > 0)[rows])
        yield found
    left = waits.excess * (1 - bound)
    yield from _slow(view, waits, work, left, role)
    for factor, cause in (
        ("host_gap", Cause.HOST_BOUND),
        ("computed_share", Cause.CACHE_COLLAPSE),
        ("prompt_length", Cause.LONG_PROMPTS),
        ("prompt_spread", Cause.GIANTS),
        ("share", Cause.ROUTING),
    ):
        yield from _grown(view, waits, work, left, role, factor, cause)
    yield from _demand(view, waits, work, left, role)


def _slow(
    view: ModelView, waits: Waits, work: PromptWork, left: Floats, role: Role
) -> Iterator[Suspicion]:
    """Slow steps, by what slows them: engines with the same reason are one finding."""
    slow = work.by_factor["slowness"]
    cost = left * work.part("slowness")
    by_cause: dict[Cause, list[int]] = {}
    evidence: dict[Cause, tuple[Evidence, ...]] = {}
    for number in _paying(cost):
        found = why_slow(view, int(waits.rows[number]), int(slow.onset[number]))
        by_cause.setdefault(found.cause, []).append(number)
        ratio = float(np.exp(slow.size[number]))
        steps = Evidence(
            "slowness", ratio, 1.0, "ratio", f"its steps take {ratio:.2f} times as long as they did"
        )
        evidence.setdefault(found.cause, (steps, *found.evidence))
    for cause, numbers in by_cause.items():
        yield _suspicion(
            view,
            waits,
            cause,
            role,
            np.array(numbers),
            cost,
            float(slow.z[numbers].max()),
            int(slow.onset[numbers].min()),
            evidence[cause],
            ActionAdvice(_SLOW_REMEDY[cause]),
        )


_SLOW_REMEDY = {
    Cause.SLOW_GPU: RemedyKind.REPLACE_GPU,
    Cause.TP_STRAGGLER: RemedyKind.REPLACE_GPU,
    Cause.STRANGER: RemedyKind.MOVE_WORKER,
    Cause.COLD_START: RemedyKind.NONE,
    Cause.INTERFERENCE: RemedyKind.SET_BATCHED_TOKENS,
}

_GROWN_TEXT = {
    "host_gap": (
        "host_gap",
        "its steps and the host's gaps between them take {:.2f} times as long",
    ),
    "computed_share": ("computed_share", "{:.2f} times as many tokens of a prompt are not cached"),
    "prompt_length": ("prompt_length", "prompts there are {:.2f} times as long"),
    "prompt_spread": (
        "prompt_spread",
        "the lengths of prompts stray {:.2f} times as far (squared)",
    ),
    "share": ("share", "it is given {:.2f} times its share of the requests"),
}
_GROWN_REMEDY = {
    "host_gap": RemedyKind.MOVE_WORKER,
    "computed_share": RemedyKind.NONE,
    "prompt_length": RemedyKind.ROUTE_AWAY,
    "prompt_spread": RemedyKind.SET_BATCHED_TOKENS,
    "share": RemedyKind.ROUTE_AWAY,
}


def _grown(
    view: ModelView,
    waits: Waits,
    work: PromptWork,
    left: Floats,
    role: Role,
    factor: str,
    cause: Cause,
) -> Iterator[Suspicion]:
    cost = left * work.part(factor)
    numbers = _paying(cost)
    if not len(numbers):
        return
    grown = work.by_factor[factor]
    if cause is Cause.LONG_PROMPTS and _is_pool(waits, numbers):
        # Longer prompts everywhere are more work for all, not work that went to the wrong engine.
        return
    ratio = float(np.exp(grown.size[numbers].max()))
    name, text = _GROWN_TEXT[factor]
    yield _suspicion(
        view,
        waits,
        cause,
        role,
        numbers,
        cost,
        float(grown.z[numbers].max()),
        int(grown.onset[numbers].min()),
        (Evidence(name, ratio, 1.0, "ratio", text.format(ratio)),),
        ActionAdvice(_GROWN_REMEDY[factor]),
    )


def _demand(
    view: ModelView, waits: Waits, work: PromptWork, left: Floats, role: Role
) -> Iterator[Suspicion]:
    """More work than the engines can do together, where nothing else makes it more."""
    has_grown = bool((work.by_factor["load"].size > 0).any())
    if not is_overloaded(view, waits, has_grown=has_grown):
        return
    part = work.part("load")
    lengths = work.part("prompt_length") if (work.by_factor["prompt_length"].size > 0).all() else 0
    cost = left * np.where(work.explained, part + lengths, 1.0)
    if not (cost > 0).any():
        return
    load = work.by_factor["load"]
    grown = float(np.exp(load.size.max()))
    text = f"all its engines work without a break, and {grown:.2f} times as many requests come"
    gone = [row for row in waits.rows if _is_gone(view, int(row))]
    cause = Cause.COLD_START if gone else Cause.DEMAND
    numbers = np.array(
        [number for number, row in enumerate(waits.rows) if row in gone]
        if gone
        else range(len(waits.rows))
    )
    whole = np.zeros(len(view.engines))
    whole[waits.rows] = cost
    yield Suspicion(
        cause,
        role,
        waits.rows[numbers],
        not gone,
        whole,
        max(float(load.z.max()), 6.0),
        int(np.min(np.where(load.size > 0, load.onset, waits.onset))),
        (Evidence("load", grown, 1.0, "ratio", text),),
        ActionAdvice(RemedyKind.MOVE_WORKER if not gone else RemedyKind.NONE),
    )


def _is_gone(view: ModelView, row: int) -> bool:
    """Whether an engine that was there is not, or has only just come back."""
    alive = view.blocks("alive", np.array([row]))[0]
    return bool(alive.any() and not alive[-2:].all())


def _paying(cost: Floats) -> Rows:
    most = cost.max(initial=0.0)
    return np.flatnonzero(cost > max(_LEAST_PART * most, 0.0)) if most > 0 else np.array([], int)


def _is_pool(waits: Waits, numbers: Rows) -> bool:
    return len(waits.rows) > 1 and len(numbers) >= _POOL_SHARE * len(waits.rows)


def _suspicion(
    view: ModelView,
    waits: Waits,
    cause: Cause,
    role: Role,
    numbers: Rows,
    cost: Floats,
    strength: float,
    onset_block: int,
    evidence: tuple[Evidence, ...],
    advice: ActionAdvice,
) -> Suspicion:
    whole = np.zeros(len(view.engines))
    whole[waits.rows[numbers]] = cost[numbers]
    return Suspicion(
        cause,
        role,
        waits.rows[numbers],
        _is_pool(waits, numbers),
        whole,
        strength,
        onset_block,
        evidence,
        advice,
    )


def _role(view: ModelView, rows: Rows) -> Role:
    roles = {view.engines[row].role for row in rows}
    return roles.pop() if len(roles) == 1 else Role.MIXED
