"""What makes requests wait now and then is suspected between two such waits, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from disagg_cluster.planner.diagnose.diagnose import diagnose
from disagg_cluster.planner.diagnose.verdict.values import Cause
from support.diagnosed_lines import DECODE, PREFILL, TARGETS, without_late_waits
from support.diagnosis_windows import Line, WindowMaker


def suspected(lines: Sequence[Line], maker: WindowMaker) -> list[tuple[Cause, list[str]]]:
    """The suspects where requests at the first engine no longer wait in the last minute.

    There are no findings.
    """
    window = without_late_waits(maker.make([*lines, *DECODE]), "p0")
    (diagnosis,), _ = diagnose(window, TARGETS)
    assert diagnosis.findings == ()
    return [(each.cause, [key.engine for key in each.engines]) for each in diagnosis.suspects]


def first(**then: float) -> list[Line]:
    """Prefill engines of which the first changes, and then makes requests wait."""
    return [replace(PREFILL[0], then={"wait_seconds": 1.6, **then}), *PREFILL[1:]]


def test_a_few_very_long_prompts_are_suspected_while_no_request_waits() -> None:
    assert suspected(first(prompt_spread=0.23), WindowMaker()) == [(Cause.GIANTS, [])]
    assert suspected(first(), WindowMaker()) == []


def test_a_larger_share_that_may_be_chance_is_suspected_while_no_request_waits() -> None:
    assert suspected(first(requests=3.5), WindowMaker(noise=0.4)) == [(Cause.ROUTING, ["p0"])]
    assert suspected(first(requests=2.4), WindowMaker(noise=0.4)) == []


def test_a_wait_before_the_engines_is_suspected_from_half_the_least_cost_on() -> None:
    assert suspected(PREFILL, WindowMaker(front_seconds=(0.0, 0.07))) == [(Cause.LATENCY_FLOOR, [])]
    assert suspected(PREFILL, WindowMaker(front_seconds=(0.0, 0.04))) == []
