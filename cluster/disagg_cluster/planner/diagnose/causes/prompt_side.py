"""Causes at the engines that compute prompts: which work grew, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from disagg_cluster.planner.diagnose.causes.batch_limits import batch_limits, full_steps
from disagg_cluster.planner.diagnose.causes.giant_prompts import (
    PERHAPS_GIANTS_Z,
    few_or_long,
)
from disagg_cluster.planner.diagnose.causes.kv_room import kv_full
from disagg_cluster.planner.diagnose.causes.overload import (
    has_only_queue,
    is_gone,
    is_overloaded,
    is_piling_up,
    is_short_of_lost,
    is_starting,
)
from disagg_cluster.planner.diagnose.causes.prompt_work import PromptWork, prompt_work
from disagg_cluster.planner.diagnose.causes.slow_steps import slow_suspicions
from disagg_cluster.planner.diagnose.causes.suspicion import (
    SURE_WAIT_Z,
    ActionAdvice,
    Adverse,
    Suspicion,
    joint_strength,
    suspicion_at,
    with_alternative,
)
from disagg_cluster.planner.diagnose.causes.waits import Waits, favoured_since, mean_wait
from disagg_cluster.planner.diagnose.causes.work_factors import (
    WORK_FACTORS,
    WorkFactor,
    cost_of,
    is_calm,
)
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence, RemedyKind
from disagg_exporter.model.counted import agreeing

# Engines with a cost below this part of the largest are left out of a factor's finding.
_LEAST_PART = 0.2
# A factor at most engines of a pool is the pool's if the rest moved this far the same way.
_SAME_WAY = 0.4
_LEAST_ALIKE, _SURE_Z = 0.6, 6.0
# Strength of an overloaded pool; that an engine is gone is certain.
_OVERLOAD_Z = 6.0
# Significance of a larger share that may explain waits.
_PERHAPS_SHARE_Z = 3.0


def prompt_suspicions(view: ModelView, waits: Waits) -> list[Suspicion]:
    """Causes of long waits at entry engines, from their work.

    A factor that explains a wait but may be chance is included with strength 0.
    """
    if not len(waits.rows):
        return []
    return _of_present_waits(view, waits) or list(_seldom_waits(view, waits))


def _seldom_waits(view: ModelView, waits: Waits) -> Iterator[Suspicion]:
    """What makes requests wait now and then, though not just now, and may be chance.

    Very long prompts, and a larger share of the requests at an engine.
    """
    rows = waits.rows
    z, onset = waits.giants
    if z >= PERHAPS_GIANTS_Z:
        since = np.full(len(rows), onset, dtype=np.intp)
        text = "a few prompts were far longer than all others"
        yield from _suspects(view, waits, since, Cause.GIANTS, text)
    since = favoured_since(view, rows, _PERHAPS_SHARE_Z)
    text = "it may be given more than its share of the requests"
    yield from _suspects(view, waits, since, Cause.ROUTING, text)


def _suspects(
    view: ModelView, waits: Waits, since: Rows, cause: Cause, text: str
) -> Iterator[Suspicion]:
    """A suspect at the engines that have a block since which requests wait longer, if any does."""
    rows, blocks = waits.rows, view.blocks("arrivals", waits.rows).shape[1]
    before, after = (mean_wait(view, rows, since, is_after=each) for each in (False, True))
    longer = np.where(since < blocks, np.nan_to_num(np.maximum(after - before, 0.0)), 0.0)
    if not (longer > 0).any():
        return
    worst = int(longer.argmax())
    then, now = float(before[worst]), float(after[worst])
    text += f", and requests wait {now:.3g} s since, {then:.3g} s before"
    (factor,) = (each for each in WORK_FACTORS if each.cause is cause)
    yield suspicion_at(
        view,
        rows,
        np.flatnonzero(since < blocks),
        longer,
        cause=cause,
        strength=0.0,
        onset_block=int(since.min()),
        evidence=(Evidence("first_token_seconds", now, then, "s", text),),
        advice=ActionAdvice(factor.remedy),
    )


def _of_present_waits(view: ModelView, waits: Waits) -> list[Suspicion]:
    """Causes of what requests wait longer now."""
    rows = waits.rows
    limits = (*batch_limits(view, waits), *kv_full(view, waits))
    if not limits and is_calm(view, waits):
        return []
    work = prompt_work(view, waits)
    found = _without_other_causes(view, waits, work, limits)
    set_aside = [each for each in limits if each not in found]
    # A limit is not growth of work: the excess at its engines is attributed to it first.
    bound = np.zeros(len(rows), dtype=np.bool_)
    for each in found:
        bound |= each.cost_seconds[rows] > 0
    left = np.where(bound, 0.0, waits.excess)
    impaired = [*found, *_slow(view, waits, work, left)]
    perhaps: list[Suspicion] = []
    for factor in WORK_FACTORS:
        suspected = list(_grown(view, waits, work, left, factor))
        grown = [each for each in suspected if each.strength > 0]
        perhaps += [each for each in suspected if each.strength <= 0]
        found += grown
        impaired += grown if factor.impairs_engine else []
    found = [*found, *(each for each in impaired if each not in found)]
    named = _with_spill(view, waits, work, left, found, impaired)
    set_aside += [each for each in found if each.cause not in {one.cause for one in named}]
    return [*(with_alternative(each, set_aside) for each in named), *perhaps]


def _without_other_causes(
    view: ModelView, waits: Waits, work: PromptWork, found: tuple[Suspicion, ...]
) -> list[Suspicion]:
    """Suspicions of `found` at engines without other causes: slowness or load fills an engine.

    A limit that was changed in the window is a cause by itself.
    """
    echoes = work.by_factor["slowness"].size > 0
    for name in ("share", "prompt_length", "load"):
        echoes |= (work.by_factor[name].size > 0) & (work.by_factor[name].z >= _SURE_Z)
    if is_overloaded(view, waits.rows, waits.now * waits.weights, has_grown=True):
        # More requests than the pool can serve fill its caches and slots, too.
        echoes |= work.by_factor["load"].size > 0
    echoes &= view.limit_onset(waits.rows) >= view.blocks("waiting", waits.rows).shape[1]
    others = set(waits.rows[echoes])
    return [each for each in found if not set(each.rows) & others]


def _with_spill(
    view: ModelView,
    waits: Waits,
    work: PromptWork,
    left: Floats,
    found: list[Suspicion],
    impaired: list[Suspicion],
) -> list[Suspicion]:
    """Add what an impaired engine costs the others to its own cost, unless the load has grown.

    Routers that count requests give a slow engine fewer of them, and the others more; one that gets
    more nevertheless is overfull for another reason.
    """
    load = work.part("load") > 0
    gone = [row for row in waits.rows if is_gone(view, int(row))]
    if gone or not impaired or load.any():
        return [*found, *_demand(view, waits, work, left, gone)]
    worst = max(
        impaired, key=lambda each: float((each.cost_seconds[waits.rows] * waits.weights).sum())
    )
    of_others = np.where(worst.cost_seconds[waits.rows] > 0, 0.0, left)
    spill = of_others * np.where(work.explained, work.part("share"), 1.0)
    whole = worst.cost_seconds.copy()
    whole[waits.rows] += spill
    kept = [
        each
        for each in found
        if each is not worst
        and (each.cause is not Cause.ROUTING or set(each.rows) & set(worst.rows))
    ]
    return [*kept, replace(worst, cost_seconds=whole)]


def _slow(view: ModelView, waits: Waits, work: PromptWork, left: Floats) -> Iterator[Suspicion]:
    slow = work.by_factor["slowness"]
    cost = cost_of(view, waits, work, left, "slowness")
    return slow_suspicions(view, waits.rows, slow, _affected(cost, slow), cost)


def _grown(
    view: ModelView, waits: Waits, work: PromptWork, left: Floats, factor: WorkFactor
) -> Iterator[Suspicion]:
    cost, grown = cost_of(view, waits, work, left, factor.name), work.by_factor[factor.name]
    numbers = _affected(cost, grown)
    # Growth by chance explains a wait, but is dropped where other growth is significant.
    if (grown.z[numbers] > 0).any():
        numbers = numbers[grown.z[numbers] > 0]
    if not len(numbers):
        return
    onset = int(grown.onset[numbers].min())
    if factor.cause in (Cause.ROUTING, Cause.LONG_PROMPTS):
        cost = _net_of_relief(view, waits, cost, onset)
    if factor.cause is Cause.GIANTS:
        numbers = np.arange(len(waits.rows))
    elif factor.cause is not Cause.ROUTING:
        numbers = _all_if_alike(view, waits, numbers, factor.name, grown)
    if factor.cause is Cause.LONG_PROMPTS and len(waits.rows) == len(numbers):
        # Longer prompts everywhere, or at the only engine, are more demand, not badly distributed.
        return
    ratio = float(np.exp(grown.size[numbers].max()))
    is_giants = factor.cause is Cause.GIANTS
    yield suspicion_at(
        view,
        waits.rows,
        numbers,
        cost,
        cause=factor.cause,
        strength=float(grown.z.max()) if is_giants else joint_strength(grown.z[numbers]),
        onset_block=onset,
        evidence=(Evidence(factor.name, ratio, 1.0, "ratio", factor.text.format(ratio)),),
        advice=ActionAdvice(factor.remedy),
        alternative=few_or_long(view, waits.rows, work.is_longer, factor.cause),
    )


def _net_of_relief(view: ModelView, waits: Waits, cost: Floats, onset_block: int) -> Floats:
    """A cost at some engines less what waits have become shorter at the others, in proportion.

    A request that is given to one engine is one fewer elsewhere, and behind a long one none waits
    there. But the only queue of a pool is its bottleneck, however calm it has become beside it.
    """
    if has_only_queue(view, waits.rows, waits.now)[cost > 0].any():
        return cost
    since = np.full(len(waits.rows), onset_block, dtype=np.intp)
    before = mean_wait(view, waits.rows, since, is_after=False)
    after = mean_wait(view, waits.rows, since, is_after=True)
    shorter = np.where(cost > 0, 0.0, np.nan_to_num(before - after))
    gross = float((cost * waits.weights).sum())
    relief = float((shorter * waits.weights).sum())
    return cost * (1.0 - np.clip(relief / gross, 0.0, 1.0)) if gross > 0 else cost


def _all_if_alike(view: ModelView, waits: Waits, numbers: Rows, name: str, grown: Adverse) -> Rows:
    """All engines if the others have moved the same way; else `numbers`."""
    every = np.arange(len(waits.rows))
    others = np.setdiff1d(every, numbers)
    if not len(others) or len(numbers) < len(others):
        return numbers
    change = view.changed(name, waits.rows).shift.change
    # Where these were so all the time, they have grown beyond the others, not beyond the past.
    alike = change[others].min() >= _SAME_WAY * float(np.median(grown.size[numbers]))
    return every if alike and change[others].min() > 0 else numbers


def _demand(
    view: ModelView, waits: Waits, work: PromptWork, left: Floats, gone: list[int]
) -> Iterator[Suspicion]:
    """Demand beyond the capacity of the pool, where no other factor explains it."""
    load = work.by_factor["load"]
    has_grown = bool((load.size > 0).any() or gone)
    is_short = bool(gone) and is_short_of_lost(view, waits.rows, waits.excess * waits.weights)
    if not (is_short or is_piling_up(view, waits.rows, load)) and not is_overloaded(
        view, waits.rows, waits.now * waits.weights, has_grown=has_grown
    ):
        return
    lengths = work.part("prompt_length") if (work.by_factor["prompt_length"].size > 0).all() else 0
    cost = left * np.where(work.explained, work.part("load") + lengths, 1.0)
    if not (cost > 0).any():
        return
    grown = float(np.exp(load.size.max()))
    text = f"all its engines work without a break, and {grown:.2f} times as many requests come"
    starting = [row for row in gone if is_starting(view, row)]
    if out := starting or gone:
        names = ", ".join(view.engines[row].place[2] for row in out)
        state = f"{agreeing(len(out), 'is', 'are')} {'starting' if starting else 'gone'}"
        text = f"{names} {state}, and the other engines cannot do that work as well"
    whole = np.zeros(len(view.engines))
    whole[waits.rows] = cost
    yield Suspicion(
        Cause.COLD_START if starting else Cause.DEMAND,
        view.engines[waits.rows[0]].role,
        np.array(starting, dtype=np.intp) if starting else waits.rows,
        not starting,
        whole,
        max(float(load.z.max()), SURE_WAIT_Z if gone else _OVERLOAD_Z),
        int(np.min(np.where(load.size > 0, load.onset, waits.onset))),
        (Evidence("load", grown, 1.0, "ratio", text),),
        ActionAdvice(RemedyKind.NONE if starting else RemedyKind.MOVE_WORKER),
        None if has_grown else full_steps(view, waits.rows),
    )


def _affected(cost: Floats, grown: Adverse) -> Rows:
    """The engines with a cost of a factor, and those where it has significantly grown as much."""
    most = float(cost.max(initial=0.0))
    if most <= 0:
        return np.array([], dtype=np.intp)
    paying = cost > _LEAST_PART * most
    as_much = grown.size >= _LEAST_ALIKE * float(np.median(grown.size[paying]))
    return np.flatnonzero(paying | (as_much & (grown.z >= _SURE_Z)))
