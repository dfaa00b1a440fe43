"""A finding has an alternative where the evidence supports two causes, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.causes.suspicion import joint_strength
from disagg_cluster.planner.diagnose.diagnose import DiagnosisState, diagnose
from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from disagg_cluster.planner.diagnose.state import settled
from disagg_cluster.planner.diagnose.verdict.values import (
    Alternative,
    BottleneckFinding,
    Cause,
)
from support.diagnosed import FOUND
from support.diagnosed_lines import DECODE, PREFILL, TARGETS
from support.diagnosis_windows import WindowMaker

SLOW = {"slowness": 2.0, "wait_seconds": 1.6}
FRONT = "disagg_request_time_to_first_token_seconds_sum"


def told(window: SeriesWindow) -> tuple[BottleneckFinding, ...]:
    """The findings of one round on a window."""
    (found,), _ = diagnose(window, TARGETS)
    return found.findings


def other_cause(finding: BottleneckFinding) -> Cause | None:
    return finding.alternative and finding.alternative.cause


def without(window: SeriesWindow, *families: str) -> SeriesWindow:
    return replace(window, families={n: s for n, s in window.families.items() if n not in families})


def with_queues(window: SeriesWindow, seconds: float, *blocks: int) -> SeriesWindow:
    """A window with waits before the engines in some blocks of 30 s, counted from the end."""
    (series,) = window.families[FRONT]
    gained = np.diff(series.values, prepend=0.0)
    for block in blocks:
        begin = window.now_seconds - 30 * block
        chosen = (series.times_seconds > begin) & (series.times_seconds <= begin + 30)
        gained[chosen] += seconds * 6.0 * 15.0  # 6 requests a second, a scrape each 15 s
    queued = ScrapedSeries(series.labels, series.times_seconds, np.cumsum(gained))
    return replace(window, families={**window.families, FRONT: (queued,)})


def test_a_slow_gpu_confirmed_by_its_readings_has_no_alternative() -> None:
    slow = replace(PREFILL[0], then={**SLOW, "clocks": (0.9e9,), "throttled": (1.0,)})

    (found,) = told(WindowMaker().make((slow, *PREFILL[1:], *DECODE)))

    assert (found.cause, found.alternative) == (Cause.SLOW_GPU, None)


def test_without_process_metrics_slow_steps_may_be_due_to_a_foreign_process() -> None:
    slow = replace(PREFILL[0], then=SLOW)
    window = WindowMaker().make((slow, *PREFILL[1:], *DECODE))

    (seen,), (blind,) = told(window), told(without(window, "disagg_gpu_foreign_sm_ratio"))

    assert (seen.cause, other_cause(seen)) == (Cause.SLOW_GPU, None)
    assert (blind.cause, other_cause(blind)) == (Cause.SLOW_GPU, Cause.STRANGER)


def test_without_a_router_queue_metric_a_latency_floor_may_be_a_router_limit() -> None:
    (found,) = told(WindowMaker(front_seconds=(0.003, 0.9)).make((*PREFILL, *DECODE)))

    assert (found.cause, other_cause(found)) == (Cause.LATENCY_FLOOR, Cause.ROUTER_LIMIT)


def test_a_past_queue_before_the_engines_is_a_router_limit() -> None:
    window = WindowMaker(front_seconds=(0.003, 0.003)).make((*PREFILL, *DECODE))

    (found,) = told(with_queues(window, 2.0, 5, 4))

    assert (found.cause, other_cause(found)) == (Cause.ROUTER_LIMIT, None)
    assert found.ttft_cost_seconds == pytest.approx(2 * 2.0 / 5, rel=0.2)
    assert told(with_queues(window, 2.0, 14, 13)) == ()  # long ago
    assert told(with_queues(window, 0.2, 5)) == ()  # less than scrapes at two times may look like


@pytest.mark.parametrize(
    ("queued_seconds", "cause", "other"),
    [
        ((1.0, 1.0, 1.0, 1.0, 1.0, 1.0), Cause.LATENCY_FLOOR, Cause.ROUTER_LIMIT),
        ((0.3, 0.6, 0.9, 1.2, 1.6, 2.0), Cause.ROUTER_LIMIT, Cause.LATENCY_FLOOR),
    ],
)
def test_a_wait_before_the_engines_that_has_just_begun_has_an_alternative(
    queued_seconds: tuple[float, ...], cause: Cause, other: Cause
) -> None:
    maker = WindowMaker(
        step_seconds=5.0, seconds=300.0, onset_seconds=300.0, front_seconds=(0.003, 0.003)
    )
    window = maker.make((*PREFILL, *DECODE))
    (series,) = window.families[FRONT]
    gained = np.diff(series.values, prepend=0.0)
    gained[-6:] += np.array(queued_seconds) * 6.0 * 5.0
    queued = ScrapedSeries(series.labels, series.times_seconds, np.cumsum(gained))

    (found,) = told(replace(window, families={**window.families, FRONT: (queued,)}))

    assert (found.cause, other_cause(found)) == (cause, other)
    assert found.alternative is not None
    assert "only just begun" in found.alternative.text


def test_a_consequence_of_a_slow_engine_is_shown_as_its_alternative() -> None:
    full = {**SLOW, "kv_usage": 0.97, "waiting": 6.0}

    (found,) = told(WindowMaker().make((replace(PREFILL[0], then=full), *PREFILL[1:], *DECODE)))

    assert found.cause is Cause.SLOW_GPU
    assert found.alternative is not None
    assert found.alternative.cause is Cause.KV_FULL
    assert "97% full" in found.alternative.text


def test_unchanged_engines_have_no_ranked_causes() -> None:
    (found,), _ = diagnose(WindowMaker().make((*PREFILL, *DECODE)), TARGETS)

    assert found.ranked_causes == ()


def test_significantly_slower_steps_have_a_cost_before_waits_grow() -> None:
    noisy = [replace(line, wait_seconds=1.2) for line in PREFILL]
    slow = replace(noisy[0], then={"slowness": 2.0, "wait_seconds": 1.3})

    (found,) = told(WindowMaker(noise=0.15).make((slow, *noisy[1:], *DECODE)))

    assert found.cause is Cause.SLOW_GPU
    assert found.engine_cost_seconds >= 0.2


def test_evidence_from_several_engines_adds_up_to_a_higher_significance() -> None:
    assert joint_strength(np.array([5.0, 5.0, 5.0, 0.0])) == pytest.approx(5 * np.sqrt(3))
    assert joint_strength(np.array([9.0, 1.0])) == 9.0
    assert joint_strength(np.zeros(2)) == 0.0


def test_causes_are_ranked_by_cost_and_alternatives_below_their_finding() -> None:
    first, second = FOUND.findings
    either = replace(first, alternative=Alternative(Cause.STRANGER, "nobody tells"))

    def ranked(*findings: BottleneckFinding) -> tuple[Cause, ...]:
        return replace(FOUND, findings=findings).ranked_causes

    dear = replace(second, ttft_cost_seconds=0.2 * first.ttft_cost_seconds)
    assert ranked(either, second) == (first.cause, Cause.STRANGER, second.cause)
    assert ranked(either, dear) == (first.cause, second.cause, Cause.STRANGER)
    assert ranked(replace(first, alternative=Alternative(second.cause, "")), dear) == (
        first.cause,
        second.cause,
    )


def test_a_cause_not_yet_confirmed_is_the_alternative_of_the_standing_finding() -> None:
    first, _ = FOUND.findings
    slow = replace(first, alternative=None)
    full = replace(slow, cause=Cause.KV_FULL, ttft_cost_seconds=0.1)
    past = settled(FOUND.model, [(slow, 9.0)], None, lambda _: 1.0, 0.0).remembered
    judged = settled(FOUND.model, [(full, 4.0)], DiagnosisState(0.0, past), lambda _: 1.0, 0.0)
    held, past = judged.findings, judged.remembered
    gone = settled(
        FOUND.model, [(full, 9.0)], DiagnosisState(0.0, past), lambda _: 1.0, 0.0
    ).findings

    assert [(each.cause, other_cause(each)) for each in held] == [(slow.cause, Cause.KV_FULL)]
    assert [(each.cause, other_cause(each)) for each in gone] == [(Cause.KV_FULL, None)]


@pytest.mark.parametrize(
    ("step_limit", "knee_tokens", "other"),
    [(2000.0, None, Cause.UNDERFILLED), (2000.0, 800.0, None), (8192.0, None, None)],
    ids=["full", "known_knee", "not_full"],
)
def test_a_pool_always_overloaded_with_full_steps_of_unknown_knee_may_be_underfilled(
    step_limit: float, knee_tokens: float | None, other: Cause | None
) -> None:
    busy = [
        replace(line, requests=2.6, token_seconds=1.8e-4, waiting=9.0, wait_seconds=5.0)
        for line in PREFILL
    ]
    lines = [replace(each, step_limit=step_limit, knee_tokens=knee_tokens) for each in busy]

    (found,) = told(WindowMaker().make([*lines, *DECODE]))

    assert (found.cause, other_cause(found)) == (Cause.DEMAND, other)
