"""Properties of a diagnosis that hold for any window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.diagnose import DiagnosisState, diagnose
from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from disagg_cluster.planner.diagnose.families import FAMILIES
from disagg_cluster.planner.diagnose.verdict.values import Cause, DiagnosisOutcome
from support.diagnosis_windows import BEGIN_SECONDS, Line, WindowMaker

TARGETS = Targets(2.0, 0.05)
SLOW = (
    Line("p0", then={"slowness": 2.0, "wait_seconds": 1.6}),
    Line("p1"),
    Line("p2"),
    Line("d0", role="decode", requests=6.0, wait_seconds=0.06, transfers=6.0),
)


def changed(window: SeriesWindow, change: object) -> SeriesWindow:
    """The same window with each series changed."""
    families = {
        name: tuple(change(each) for each in series)  # type: ignore[operator] # a function
        for name, series in window.families.items()
    }
    return replace(window, families=families)


def test_an_empty_window_gives_no_diagnoses() -> None:
    assert diagnose(SeriesWindow(0.0, 600.0), TARGETS)[0] == ()


def test_a_single_scrape_leaves_a_model_undecided_with_the_reason() -> None:
    window = WindowMaker(seconds=15.0).make(SLOW)

    (found,), _ = diagnose(window, TARGETS)

    assert found.outcome is DiagnosisOutcome.UNDECIDED
    assert found.missing == ("engines have not been scraped for long enough",)


@pytest.mark.parametrize(("seconds", "findings"), [(105.0, 0), (150.0, 1)])
def test_causes_are_suspects_until_two_minutes_were_scraped(seconds: float, findings: int) -> None:
    window = WindowMaker(seconds=seconds, onset_seconds=60.0, step_seconds=5.0).make(SLOW)

    (found,), _ = diagnose(window, TARGETS)

    assert len(found.findings) == findings
    assert Cause.SLOW_GPU in found.ranked_causes


def test_a_model_no_longer_scraped_is_undecided_with_the_time_since() -> None:
    window = WindowMaker().make(SLOW)
    silent = replace(window, now_seconds=window.now_seconds + 90.0)

    (found,), state = diagnose(silent, TARGETS)

    assert found.outcome is DiagnosisOutcome.UNDECIDED
    assert found.findings == state.standing == ()
    assert "no engine of it has been scraped for 1m 30s" in found.missing[0]


@pytest.mark.parametrize(
    ("scraped", "outcome"), [("p0", DiagnosisOutcome.FOUND), ("none", DiagnosisOutcome.UNDECIDED)]
)
def test_a_model_is_diagnosed_while_one_of_its_engines_is_scraped(
    scraped: str, outcome: DiagnosisOutcome
) -> None:
    window = WindowMaker().make(SLOW)

    def until_lately(each: ScrapedSeries) -> ScrapedSeries:
        if each.labels.get("engine") == scraped:
            return each
        kept = each.times_seconds <= window.now_seconds - 90.0
        return replace(each, times_seconds=each.times_seconds[kept], values=each.values[kept])

    (found,), _ = diagnose(changed(window, until_lately), TARGETS)

    assert found.outcome is outcome
    assert [each.cause for each in found.findings] == [Cause.SLOW_GPU] * (scraped == "p0")


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 0.0, 1e300])
def test_constant_or_absurd_values_give_no_findings(value: float) -> None:
    window = changed(
        WindowMaker().make(SLOW),
        lambda each: ScrapedSeries(
            each.labels, each.times_seconds, np.full(len(each.values), value)
        ),
    )

    found, _ = diagnose(window, TARGETS)

    assert [each.findings for each in found] == [()] * len(found)


@settings(max_examples=8, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_series_does_not_matter(random: object) -> None:
    window = WindowMaker().make(SLOW)
    families = {name: list(series) for name, series in window.families.items()}
    for series in families.values():
        random.shuffle(series)  # type: ignore[attr-defined] # hypothesis' random
    shuffled = replace(window, families={name: tuple(each) for name, each in families.items()})

    assert diagnose(shuffled, TARGETS)[0] == diagnose(window, TARGETS)[0]


@settings(max_examples=8, deadline=None)
@given(st.permutations(["a", "zz", "engine-7", "0"]))
def test_engine_names_do_not_matter(names: list[str]) -> None:
    lines = [replace(line, name=name) for line, name in zip(SLOW, names, strict=True)]

    ((found,),) = (each.findings for each in diagnose(WindowMaker().make(lines), TARGETS)[0])

    assert found.cause is Cause.SLOW_GPU
    assert [key.engine for key in found.engines] == [names[0]]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(0, 10_000))
def test_noise_alone_gives_no_findings(seed: int) -> None:
    well = [replace(line, then={}) for line in SLOW]

    (found,), _ = diagnose(WindowMaker(noise=0.15, seed=seed).make(well), TARGETS)

    assert found.findings == ()


def test_missing_families_are_no_error() -> None:
    window = WindowMaker().make(SLOW)
    for missing in FAMILIES:
        families = {name: each for name, each in window.families.items() if name != missing}

        diagnose(replace(window, families=families), TARGETS)


def test_nodes_scraped_at_different_times_are_diagnosed_together() -> None:
    late = {"p0": 4.0, "p1": 9.0}
    lines = [replace(line, node=f"node-{line.name}") for line in SLOW]
    window = changed(
        WindowMaker().make(lines),
        lambda each: replace(
            each,
            times_seconds=each.times_seconds - late.get(each.labels["node"][5:], 0.0),
        ),
    )

    ((found,),) = (each.findings for each in diagnose(window, TARGETS)[0])

    assert found.cause is Cause.SLOW_GPU


def test_a_gap_in_the_scrapes_changes_no_finding() -> None:
    gap = (BEGIN_SECONDS + 200, BEGIN_SECONDS + 320)

    def without(each: ScrapedSeries) -> ScrapedSeries:
        kept = (each.times_seconds < gap[0]) | (each.times_seconds > gap[1])
        return replace(each, times_seconds=each.times_seconds[kept], values=each.values[kept])

    well = [replace(line, then={}) for line in SLOW]

    (clean,), _ = diagnose(changed(WindowMaker().make(well), without), TARGETS)
    (slow,), _ = diagnose(changed(WindowMaker().make(SLOW), without), TARGETS)

    assert clean.findings == ()
    assert [each.cause for each in slow.findings] == [Cause.SLOW_GPU]


@pytest.mark.parametrize("replaced_seconds", [15.0, 300.0])
def test_replaced_daemon_pods_change_no_finding(replaced_seconds: float) -> None:
    """Their pages go on under other labels, and the last values under the old ones are no part."""
    more = {"requests": 4.5, "wait_seconds": 2.5, "waiting": 6.0, "running": 20.0}
    lines = [Line(f"p{n}", step_tokens=5500.0, requests=3.0, then=more) for n in range(4)]
    window = WindowMaker(noise=0.05).make(lines)
    families = {
        name: tuple(part for each in series for part in _replaced(name, each, replaced_seconds))
        for name, series in window.families.items()
    }

    (found,), _ = diagnose(replace(window, families=families), TARGETS)

    assert [each.cause for each in found.findings] == [Cause.DEMAND]


def _replaced(name: str, series: ScrapedSeries, after_seconds: float) -> list[ScrapedSeries]:
    """A series until a pod is replaced, and that of the new pod, which counts anew."""
    times, values = series.times_seconds, series.values
    split = int(np.searchsorted(times, BEGIN_SECONDS + after_seconds))
    is_counter = name.endswith(("_total", "_sum", "_count", "_bucket"))
    rest = values[split:] - values[split] * is_counter
    return [
        replace(series, labels={**series.labels, "pod": pod}, times_seconds=when, values=what)
        for pod, when, what in (
            ("old", times[:split], values[:split]),
            ("new", times[split:], rest),
        )
    ]


def test_counter_resets_give_no_findings() -> None:
    def restarted(each: ScrapedSeries) -> ScrapedSeries:
        if not (np.diff(each.values) > 0).all():
            return each
        values = each.values.copy()
        values[20:] -= values[20]
        return replace(each, values=values)

    well = [replace(line, then={}) for line in SLOW]

    (found,), _ = diagnose(changed(WindowMaker().make(well), restarted), TARGETS)

    assert found.findings == ()


def test_a_finding_persists_for_two_rounds_without_evidence() -> None:
    sick, well = WindowMaker().make(SLOW), [replace(line, then={}) for line in SLOW]
    seen, state = diagnose(sick, TARGETS, DiagnosisState())
    gone = WindowMaker().make(well)

    outcomes = []
    for _ in range(4):
        (found,), state = diagnose(gone, TARGETS, state)
        outcomes.append(found.outcome)

    assert seen[0].outcome is DiagnosisOutcome.FOUND
    assert outcomes == [DiagnosisOutcome.FOUND] * 2 + [DiagnosisOutcome.NO_BOTTLENECK] * 2


def test_a_finding_persists_beyond_the_window_in_which_it_began() -> None:
    alone = (replace(SLOW[0], then={"cached_share": 0.0, "wait_seconds": 1.6}), SLOW[3])
    _, state = diagnose(WindowMaker().make(alone), TARGETS, DiagnosisState())
    later = WindowMaker(onset_seconds=-1.0).make(alone)
    shifted = replace(
        changed(later, lambda each: replace(each, times_seconds=each.times_seconds + 1200.0)),
        begin_seconds=later.begin_seconds + 1200.0,
        now_seconds=later.now_seconds + 1200.0,
    )

    (still,), state = diagnose(shifted, TARGETS, state)
    (unknown,), _ = diagnose(shifted, TARGETS)

    assert [each.cause for each in still.findings] == [Cause.CACHE_COLLAPSE]
    assert unknown.findings == ()


def test_a_finding_keeps_its_start_time() -> None:
    (first,), state = diagnose(WindowMaker().make(SLOW), TARGETS, DiagnosisState())
    later = WindowMaker(seconds=900.0, onset_seconds=480.0).make(SLOW)

    (again,), _ = diagnose(later, TARGETS, state)

    assert again.findings[0].since_seconds == first.findings[0].since_seconds
