"""The diagnosis of one model: its causes in order, and the missing evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from disagg_cluster.planner.diagnose.causes.decode_side import decode_suspicions
from disagg_cluster.planner.diagnose.causes.front import front_suspicions
from disagg_cluster.planner.diagnose.causes.overload import busy_ratio, has_only_queue
from disagg_cluster.planner.diagnose.causes.prompt_side import prompt_suspicions
from disagg_cluster.planner.diagnose.causes.router_queue import router_waits
from disagg_cluster.planner.diagnose.causes.suspicion import Suspicion
from disagg_cluster.planner.diagnose.causes.waits import (
    SUSPECTED_PART,
    Waits,
    least_cost_seconds,
    waits_of,
)
from disagg_cluster.planner.diagnose.evidence.known import known_mean
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_BEFORE
from disagg_cluster.planner.diagnose.missing import is_wait_unknown, missing_evidence
from disagg_cluster.planner.diagnose.state import DiagnosisState, StandingFinding, settled
from disagg_cluster.planner.diagnose.ttft_parts import ttft_parts
from disagg_cluster.planner.diagnose.verdict.remedies import remedy
from disagg_cluster.planner.diagnose.verdict.values import (
    BEFORE_ENGINES,
    BottleneckFinding,
    Cause,
    DiagnosisOutcome,
    EngineKey,
    ModelDiagnosis,
    ModelKey,
)
from disagg_cluster.planner.diagnose.words.vocabulary import CAUSES
from disagg_exporter.model import Role

# What causes this significant cost is counted by former shares of requests where those were larger.
_SURE = 8.0
# Of a sure cause this part of the least cost suffices: queues behind it have only begun to grow.
_SURE_PART = 0.7
# That these happen may be sure. What they cost follows from waits: very long prompts come by
# chance, and requests that go to one engine wait less at the others.
_COST_FROM_WAITS = frozenset({Cause.GIANTS, Cause.LONG_PROMPTS, Cause.ROUTING})
# Strengths beyond it do not raise the confidence.
_STRONG = 12.0
# Unexplained waits leave a diagnosis undecided from this part of the target on.
_LATE = 0.8
_BUSY = 0.75
# In a shorter window the noise between blocks is unknown, and chance looks significant.
_LEAST_SECONDS = 120.0


def diagnose_model(
    view: ModelView, past: DiagnosisState | None
) -> tuple[ModelDiagnosis, tuple[StandingFinding, ...]]:
    """Diagnose one model; also returns the findings to remember."""
    entry, decode = waits_of(view, view.entries), waits_of(view, view.decoders)
    suspicions = _without_echoes(
        prompt_suspicions(view, entry), list(decode_suspicions(view, decode, entry))
    )
    suspicions += front_suspicions(view)
    cluster, namespace, model_name = view.place
    key = ModelKey(cluster, namespace, model_name)
    observed = _findings(view, entry, decode, suspicions)
    judged = settled(
        key,
        observed,
        past,
        partial(_wait_seconds, view, entry, decode),
        view.since_seconds(LEAST_BEFORE + 1),
        _new_scrapes(view, past),
    )
    missing = tuple(missing_evidence(view))
    parts = tuple(ttft_parts(view, entry, decode))
    is_unexplained = all(each.is_past for each in judged.remembered)
    unexplained = "and no exported metric explains why"
    if judged.findings:
        outcome, text = DiagnosisOutcome.FOUND, judged.findings[0].text
    elif queue := _only_queue(view, entry):
        again = "and what may explain it must be observed again"
        outcome = DiagnosisOutcome.UNDECIDED
        text = f"{queue}, {unexplained if is_unexplained else again}"
    elif is_unexplained and _is_late(view, entry, decode):
        outcome = DiagnosisOutcome.UNDECIDED
        text = f"requests wait longer than before, {unexplained}"
    elif is_wait_unknown(view):
        outcome, text = DiagnosisOutcome.UNDECIDED, "whether its requests wait is not known"
    else:
        outcome, text = DiagnosisOutcome.NO_BOTTLENECK, "nothing holds requests back"
    now = view.changes.fleet.grid.now_seconds
    return ModelDiagnosis(
        key, now, outcome, judged.findings, parts, missing, text, judged.suspects
    ), judged.remembered


def _new_scrapes(view: ModelView, past: DiagnosisState | None) -> int:
    """Scrapes since the previous round; 1 without one."""
    grid = view.changes.fleet.grid
    since_seconds = grid.now_seconds - (grid.now_seconds if past is None else past.now_seconds)
    return max(1, round(since_seconds / grid.step_seconds))


def _without_echoes(before: list[Suspicion], after: list[Suspicion]) -> list[Suspicion]:
    """Suspicions at prefill and decode engines, without full prefill caches that decode caused.

    KV that decode does not fetch fills the caches of prefill engines, where requests wait for room.
    """
    if not after:
        return before
    echoes = [e for e in before if e.cause is Cause.KV_FULL and e.role is Role.PREFILL]
    first = after[0]
    cost = first.cost_seconds + sum((e.cost_seconds for e in echoes), np.zeros(1))
    kept = [each for each in before if each not in echoes]
    return [*kept, replace(first, cost_seconds=cost), *after[1:]]


def _wait_seconds(
    view: ModelView, entry: Waits, decode: Waits, finding: BottleneckFinding
) -> float:
    """The present wait of requests at a finding; 0 if unknown."""
    if finding.cause in BEFORE_ENGINES:
        router = router_waits(view)
        return 0.0 if router is None else float(np.nan_to_num(known_mean(router[-2:])))
    waits = decode if finding.role is Role.DECODE else entry
    chosen = [
        number
        for number, row in enumerate(waits.rows)
        if not finding.engines or _key(view.engines[row].place) in finding.engines
    ]
    return float(np.nan_to_num(known_mean(waits.now[chosen]))) if chosen else 0.0


def _findings(
    view: ModelView, entry: Waits, decode: Waits, suspicions: Sequence[Suspicion]
) -> list[tuple[BottleneckFinding, float]]:
    weights = np.zeros(len(view.engines))
    weights[entry.rows] = entry.weights
    weights[decode.rows] = decode.weights
    usual = float(np.nansum(entry.usual * entry.weights))
    least = least_cost_seconds(view, usual)
    found = []
    for each in suspicions:
        cost = np.nan_to_num(each.cost_seconds)
        total = float((cost * weights).sum())
        own = float(cost.max(initial=0.0))
        # Routers keep requests away from impaired engines, and they wait at others.
        usual_weights = np.maximum(weights, _weights_before(view, each.onset_block))
        sure = each.strength >= _SURE and each.cause not in _COST_FROM_WAITS
        at_stake = float((cost * usual_weights).sum()) if sure else total
        if at_stake < SUSPECTED_PART * least:
            continue
        # Causes that cost less are suspects, and all are in a short window. What a change costs
        # that engines report is about to grow.
        enough = _SURE_PART * least if sure else least
        is_dear = each.is_reported or at_stake >= enough
        strength = each.strength if is_dear and not _is_short(view) else 0.0
        found.append((_finding(view, each, total, own), strength))
    return sorted(found, key=lambda pair: -pair[0].ttft_cost_seconds)


def _is_short(view: ModelView) -> bool:
    grid = view.changes.fleet.grid
    # A grid lacks the scrape with which it begins.
    return (grid.bins + 1) * grid.step_seconds < _LEAST_SECONDS


def _weights_before(view: ModelView, onset_block: int) -> Floats:
    """Each engine's share of its pool's first tokens before a block."""
    found = np.zeros(len(view.engines))
    for rows in (view.entries, view.decoders):
        counts = np.nan_to_num(view.blocks("first_tokens", rows))[:, :onset_block].sum(axis=1)
        found[rows] = counts / max(float(counts.sum()), 1.0)
    return found


def _finding(
    view: ModelView, suspicion: Suspicion, total_seconds: float, own_seconds: float
) -> BottleneckFinding:
    chosen = [view.engines[row] for row in suspicion.rows]
    engines = () if suspicion.is_pool else tuple(sorted(_key(each.place) for each in chosen))
    names = [engine.engine for engine in engines]
    pool = (
        "before the engines" if suspicion.cause in BEFORE_ENGINES else f"the {suspicion.role} pool"
    )
    who = ", ".join(names) if names else pool
    confidence = 0.5 + 0.45 * min(suspicion.strength / _STRONG, 1.0)
    why = suspicion.evidence[0].text if suspicion.evidence else ""
    return BottleneckFinding(
        cause=suspicion.cause,
        role=suspicion.role,
        engines=engines,
        confidence=confidence,
        ttft_cost_seconds=total_seconds,
        engine_cost_seconds=own_seconds,
        since_seconds=view.since_seconds(suspicion.onset_block),
        evidence=suspicion.evidence,
        remedy=remedy(
            suspicion.cause,
            suspicion.advice.kind,
            str(suspicion.role),
            names,
            value=suspicion.advice.value,
            gain_seconds=total_seconds,
        ),
        text=f"{who}: {CAUSES[suspicion.cause]} ({why})",
        alternative=suspicion.alternative,
    )


def _key(place: tuple[str, str, str]) -> EngineKey:
    return EngineKey(place[1], place[2])


def _only_queue(view: ModelView, entry: Waits) -> str:
    """Which single engine has a lasting queue; empty if none has."""
    alone = has_only_queue(view, entry.rows, entry.now) & (entry.excess > 0)
    if not alone.any():
        return ""
    row = int(alone.argmax())
    name = view.engines[entry.rows[row]].place[2]
    return f"requests wait {entry.now[row]:.3g} s at {name} and hardly beside it"


def _is_late(view: ModelView, entry: Waits, decode: Waits) -> bool:
    """Whether users wait too long though engines have idle time.

    A nearly full pool has queues that come and go without a cause but chance.
    """
    if len(entry.rows) and float(np.nan_to_num(busy_ratio(view, entry.rows)).max()) >= _BUSY:
        return False
    excess = float(
        np.nansum(entry.excess * entry.weights) + np.nansum(decode.excess * decode.weights)
    )
    now = float(np.nansum(entry.now * entry.weights) + np.nansum(decode.now * decode.weights))
    target = view.targets.ttft_seconds
    least = least_cost_seconds(view, max(now - excess, 0.0))
    return excess >= 2 * least and now >= _LATE * (target if np.isfinite(target) else 0.0)
