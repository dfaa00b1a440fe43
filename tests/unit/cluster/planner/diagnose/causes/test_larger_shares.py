"""Engines that are given more than their share of the requests, when that shows in few of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from disagg_cluster.planner.diagnose.diagnose import diagnose
from disagg_cluster.planner.diagnose.verdict.values import Cause
from support.diagnosed_lines import DECODE, PREFILL, TARGETS, named, without_late_waits
from support.diagnosis_windows import Line, WindowMaker


def favoured(*requests: tuple[float, float], wait_seconds: float = 1.6) -> list[Line]:
    """Prefill engines by their requests before and after; the first makes them wait since."""
    lines = [
        replace(line, requests=before, then={"requests": after})
        for line, (before, after) in zip(PREFILL, requests, strict=True)
    ]
    lines[0] = replace(lines[0], then={**lines[0].then, "wait_seconds": wait_seconds})
    return [*lines, *DECODE]


def causes(lines: Sequence[Line]) -> list[tuple[Cause, list[str]]]:
    """Causes where requests vary so much that blocks hardly show a share."""
    found = named(*lines, noise=0.2, seed=1)
    return [(each.cause, [key.engine for key in each.engines]) for each in found]


def test_a_slightly_larger_share_explains_a_sure_wait_that_nothing_else_explains() -> None:
    assert causes(favoured((3.0, 3.8), (2.0, 1.6), (1.0, 1.0))) == [(Cause.ROUTING, ["p0"])]


def test_a_fair_share_explains_no_wait() -> None:
    assert causes(favoured((2.0, 2.3), (2.0, 1.9), (2.0, 1.9))) == []


def test_queues_that_come_and_go_at_an_engine_with_more_than_its_share_count_together() -> None:
    lines = favoured((2.0, 3.6), (2.0, 1.2), (2.0, 1.2), wait_seconds=2.4)

    (diagnosis,), _ = diagnose(without_late_waits(WindowMaker().make(lines), "p0"), TARGETS)
    (found,) = diagnosis.findings

    assert (found.cause, [key.engine for key in found.engines]) == (Cause.ROUTING, ["p0"])
