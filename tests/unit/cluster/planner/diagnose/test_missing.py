"""A diagnosis does not call a model well whose requests nobody sees wait."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.diagnose import diagnose
from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from disagg_cluster.planner.diagnose.verdict.values import Cause, DiagnosisOutcome, ModelDiagnosis
from support.diagnosed_lines import DECODE, PREFILL, TARGETS
from support.diagnosis_windows import BEGIN_SECONDS, Line, WindowMaker

MIXED = tuple(Line(f"m{number}", role="mixed") for number in range(2))
_KEPT_WHILE_DOWN = ("disagg_engine_info", "disagg_engine_up", "disagg_gpu_assignment_info")


def diagnosed(window: SeriesWindow) -> ModelDiagnosis:
    (found,), _ = diagnose(window, TARGETS)
    return found


def without_waits(window: SeriesWindow, engines: Collection[str]) -> SeriesWindow:
    """The window without these engines' times to first token."""
    return replace(
        window,
        families={
            name: tuple(
                each
                for each in series
                if "time_to_first_token" not in name or each.labels.get("engine") not in engines
            )
            for name, series in window.families.items()
        },
    )


def down(window: SeriesWindow, engines: Collection[str]) -> SeriesWindow:
    """The window with these engines down for its last three minutes, and still known."""
    since = BEGIN_SECONDS + 420

    def of(name: str, each: ScrapedSeries) -> ScrapedSeries:
        if each.labels.get("engine") not in engines:
            return each
        before = each.times_seconds < since
        if name == "disagg_engine_up":
            return replace(each, values=np.where(before, 1.0, 0.0))
        kept = before | (name in _KEPT_WHILE_DOWN)
        return replace(each, times_seconds=each.times_seconds[kept], values=each.values[kept])

    families = {
        name: tuple(of(name, each) for each in series) for name, series in window.families.items()
    }
    return replace(window, families=families)


@pytest.mark.parametrize("pool", [PREFILL, DECODE])
def test_a_model_with_no_engine_of_a_pool_up_is_undecided(pool: tuple[Line, ...]) -> None:
    found = diagnosed(down(WindowMaker().make((*PREFILL, *DECODE)), {each.name for each in pool}))

    assert found.outcome is DiagnosisOutcome.UNDECIDED
    assert found.text == "whether its requests wait is not known"
    assert found.missing[0] == (
        f"no {pool[0].role} engine of it answers: they start, were ended or are down"
    )


def test_a_model_is_decided_while_mixed_engines_serve_it_or_others_of_a_pool_do() -> None:
    mixed = WindowMaker().make((*MIXED, *DECODE))
    pools = WindowMaker().make((*PREFILL, *DECODE))

    assert diagnosed(down(mixed, ("d0", "d1"))).outcome is DiagnosisOutcome.NO_BOTTLENECK
    assert "answers" not in "".join(diagnosed(down(pools, ("d0",))).missing)


def test_a_model_whose_engines_tell_no_waits_is_undecided() -> None:
    every = [each.name for each in (*PREFILL, *DECODE)]

    found = diagnosed(without_waits(WindowMaker().make((*PREFILL, *DECODE)), every))

    assert found.outcome is DiagnosisOutcome.UNDECIDED
    assert found.missing[:2] == (
        "no prefill engine exports times to first token: waits there are unknown",
        "no decode engine exports times to first token: waits there are unknown",
    )


def test_engines_that_tell_no_waits_beside_others_are_named() -> None:
    found = diagnosed(without_waits(WindowMaker().make((*PREFILL, *DECODE)), ("p0", "p2")))

    assert found.outcome is DiagnosisOutcome.NO_BOTTLENECK
    assert found.missing[0] == (
        "no times to first token of prefill engines p0 on node-0 and p2 on node-0 are exported: "
        "waits there are unknown"
    )


@pytest.mark.parametrize("since_seconds", [0.0, 450.0])
@pytest.mark.parametrize("others", [(*PREFILL[1:], *DECODE), MIXED])
def test_waits_at_an_engine_that_is_not_scraped_are_not_said_to_be_before_the_engines(
    others: tuple[Line, ...], since_seconds: float
) -> None:
    """The frontend's mean has them, and that of the engines that are scraped does not."""
    slower = replace(others[0], name="x", wait_seconds=1.6)
    window = WindowMaker(front_seconds=(0.01, 0.01)).make((slower, *others))
    end = BEGIN_SECONDS + since_seconds

    def until(each: ScrapedSeries) -> ScrapedSeries:
        kept = (each.times_seconds < end) | (each.labels.get("engine") != "x")
        return replace(each, times_seconds=each.times_seconds[kept], values=each.values[kept])

    families = {
        name: tuple(part for each in series if len((part := until(each)).values))
        for name, series in window.families.items()
    }
    found = diagnosed(replace(window, families=families))

    assert found.findings == ()
    assert "that a frontend or router counts: waits before the engines are" in found.missing[0]
    assert diagnosed(window).missing == ()


def test_waits_that_engines_do_not_tell_are_not_said_to_be_before_the_engines() -> None:
    slower = replace(PREFILL[0], then={"wait_seconds": 1.6, "slowness": 2.0})
    window = WindowMaker(front_seconds=(0.01, 0.01)).make((slower, *PREFILL[1:], *DECODE))

    found = diagnosed(without_waits(window, ("p0",)))

    assert found.findings == ()
    assert found.missing[0].startswith("no times to first token of prefill engine p0 on node-0")


def test_prompts_that_decode_engines_compute_are_not_missing_at_prefill_engines() -> None:
    """Half of the requests go to decode engines at once."""
    decode = [replace(each, requests=6.0) for each in DECODE]
    window = WindowMaker(front_seconds=(0.01, 1.5)).make((*PREFILL, *decode))

    def of(name: str, each: ScrapedSeries) -> ScrapedSeries:
        if name.startswith("disagg_request_"):
            return replace(each, values=2 * each.values)
        is_prompts = name == "disagg_engine_phase_tokens_total" and each.labels["role"] == "decode"
        if is_prompts and each.labels["phase"] == "prefill":
            return replace(each, values=6e4 * np.arange(len(each.values), dtype=float))
        return each

    families = {
        name: tuple(of(name, each) for each in series) for name, series in window.families.items()
    }
    found = diagnosed(replace(window, families=families))

    assert [each.cause for each in found.findings] == [Cause.LATENCY_FLOOR]


def test_requests_of_mixed_engines_are_missing_at_no_other_pool() -> None:
    window = WindowMaker(front_seconds=(0.01, 1.5)).make((*PREFILL, *MIXED, *DECODE))

    assert [each.cause for each in diagnosed(window).findings] == [Cause.LATENCY_FLOOR]


def test_idle_engines_without_a_first_token_yet_hold_nothing_back() -> None:
    idle = [replace(each, running=0.0, waiting=0.0) for each in (*PREFILL, *DECODE)]

    found = diagnosed(without_waits(WindowMaker().make(idle), [each.name for each in idle]))

    assert found.outcome is DiagnosisOutcome.NO_BOTTLENECK
    assert "times to first token of" not in "".join(found.missing)


def test_what_is_left_out_as_impossible_is_named() -> None:
    window = WindowMaker().make((*PREFILL, *DECODE))
    usage = window.families["disagg_engine_kv_cache_usage_ratio"]
    impossible = replace(usage[0], values=np.full(len(usage[0].values), -1.0))
    families = {**window.families, "disagg_engine_kv_cache_usage_ratio": (impossible, *usage[1:])}

    found = diagnosed(replace(window, families=families))

    assert found.missing[-1] == (
        f"{len(usage[0].values)} samples, of any model, are left out: "
        "values that are negative, infinite or no number"
    )
    assert "left out" not in "".join(diagnosed(window).missing)
