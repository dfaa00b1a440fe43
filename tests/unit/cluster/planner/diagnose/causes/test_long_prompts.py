"""Long prompts at one engine: what they cost all requests, and what of them is chance."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_cluster.planner.diagnose.diagnose import DiagnosisState, diagnose
from disagg_cluster.planner.diagnose.verdict.values import Cause, DiagnosisOutcome
from support.diagnosed_lines import DECODE, PREFILL, TARGETS, named
from support.diagnosis_windows import Line, WindowMaker


def long_at_first(wait_seconds: float, beside_seconds: float, requests: float = 2.0) -> list[Line]:
    """The long prompts go to the first prefill engine, and fewer requests do; waits since."""
    first, *others = PREFILL
    then = {"prompt_tokens": 9000.0, "requests": requests, "wait_seconds": wait_seconds}
    spared = {"prompt_tokens": 2000.0, "wait_seconds": beside_seconds}
    return [replace(first, then=then), *(replace(line, then=spared) for line in others), *DECODE]


def causes(lines: list[Line]) -> list[tuple[Cause, list[str]]]:
    return [(each.cause, [key.engine for key in each.engines]) for each in named(*lines)]


def test_long_prompts_at_one_engine_are_not_named_where_the_others_are_spared_as_much() -> None:
    assert causes(long_at_first(0.8, 0.4)) == [(Cause.LONG_PROMPTS, ["p0"])]
    assert causes(long_at_first(0.8, 0.1)) == []


def test_long_prompts_cost_those_that_wait_behind_them_not_those_that_a_router_sends_away() -> None:
    assert causes(long_at_first(1.6, 0.4, requests=0.8)) == [(Cause.LONG_PROMPTS, ["p0"])]
    assert causes(long_at_first(1.6, 0.4, requests=0.2)) == []


def test_the_only_queue_of_a_pool_is_named_however_calm_it_has_become_beside_it() -> None:
    first, *rest = long_at_first(1.6, 0.1)
    lines = [first, *(replace(line, wait_seconds=1.2) for line in rest[:2]), *DECODE]
    queued = replace(first, then={**first.then, "waiting": 20.0})

    assert causes(lines) == []
    assert causes([queued, *lines[1:]]) == [(Cause.LONG_PROMPTS, ["p0"])]


@pytest.mark.parametrize(
    ("noise", "outcome"), [(0.08, DiagnosisOutcome.FOUND), (0.16, DiagnosisOutcome.NO_BOTTLENECK)]
)
def test_a_sure_number_of_long_prompts_behind_a_sure_wait_needs_no_second_check(
    noise: float, outcome: DiagnosisOutcome
) -> None:
    """With more noise, the wait begins a block later: too few long prompts have come since."""
    first, *others = [replace(line, requests=0.08) for line in PREFILL]
    then = {"prompt_tokens": 6000.0, "wait_seconds": 1.6}
    shorter = [replace(line, then={"prompt_tokens": 2000.0}) for line in others]
    window = WindowMaker(noise=noise).make([replace(first, then=then), *shorter, *DECODE])

    (found,), _ = diagnose(window, TARGETS, DiagnosisState(window.now_seconds - 15.0))

    assert found.outcome is outcome
