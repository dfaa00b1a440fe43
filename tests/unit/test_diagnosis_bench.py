"""bench-diagnosis: it records what nodes export; what it draws and how it judges."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from bench.diagnosis.generator import draw_scenario, read_scenarios
from bench.diagnosis.play import Played, Round, Said
from bench.diagnosis.recorder import Recorder, ScrapedPages, Scraping
from bench.diagnosis.scenario import WALL_OFFSET_SECONDS, Scenario, SecondFault, Truth
from bench.diagnosis.score import is_case_right, score
from prometheus_client.parser import text_string_to_metric_families

from disagg_cluster.planner.diagnose.evidence.series_window import SeriesWindow
from disagg_cluster.planner.diagnose.verdict.values import Cause, DiagnosisOutcome, EngineKey
from disagg_cluster.simulator.cluster.event_queue import RequestEnded
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.metrics.page_cache import PageText
from disagg_exporter.metrics.render import rows_of
from disagg_exporter.model import Assignment, Role
from support.simulated_node import SECOND_NS, LearnedEngineCosts, SimulatedNode
from support.snapshots import golden_snapshot

TOLD = read_scenarios()
CLEAN = replace(draw_scenario(TOLD, "steady", "0-0"), end_seconds=45.0)


def recorded(scenario: Scenario) -> SeriesWindow:
    recorder = Recorder(
        scenario.simulation(),
        Scraping(scrape_seconds=5.0, fronts=("node-0",)),
        wall_offset_seconds=WALL_OFFSET_SECONDS,
        end_seconds=scenario.end_seconds,
    )
    return list(recorder.rounds(15.0))[-1]


def test_a_scenario_is_recorded_the_same_each_time() -> None:
    first, second = recorded(CLEAN), recorded(CLEAN)

    assert first.families.keys() == second.families.keys()
    assert len(first.families) > 60
    for name, series in first.families.items():
        for one, other in zip(series, second.of(name), strict=True):
            assert one.labels == other.labels
            np.testing.assert_array_equal(one.times_seconds, other.times_seconds)
            np.testing.assert_array_equal(one.values, other.values)


def test_series_carry_the_labels_of_a_scrape_and_the_frontend_is_among_them() -> None:
    window = recorded(CLEAN)

    (front,) = window.of("disagg_request_time_to_first_token_seconds_count")
    assert front.labels["source"] == "frontend"
    assert front.labels["node"] == "node-0"
    assert {"cluster", "instance", "job"} <= front.labels.keys()
    assert np.all(np.diff(front.times_seconds) == pytest.approx(5.0))
    assert window.begin_seconds < front.times_seconds[0] < front.times_seconds[-1]
    assert front.times_seconds[-1] <= window.now_seconds


def test_requests_wait_as_long_with_reports_as_without() -> None:
    def first_tokens(simulation: Simulation) -> dict[int, int | None]:
        events = [event for _, event in simulation.events(45 * SECOND_NS)]
        ended = [event for event in events if isinstance(event, RequestEnded)]
        assert len(ended) > 10
        return {event.request.number: event.first_token_ns for event in ended}

    assert first_tokens(CLEAN.simulation()) == first_tokens(CLEAN.twin())
    assert all(isinstance(e, RequestEnded | Assignment) for _, e in CLEAN.twin().events(SECOND_NS))


def test_the_costs_of_steps_are_the_same_learned_at_once_as_one_after_the_other() -> None:
    def learned(*, at_once: bool) -> dict[str, LearnedEngineCosts]:
        simulation = CLEAN.simulation()
        (name, *_), t_ns = simulation.nodes, 0
        node = SimulatedNode(name, simulation, wall_offset_seconds=WALL_OFFSET_SECONDS)
        advance = node.learn_limits if at_once else node.advance
        for t_ns in range(5 * SECOND_NS, 60 * SECOND_NS, 5 * SECOND_NS):
            for now_ns, event in simulation.events(t_ns):
                if simulation.node_of(event) == name:
                    node.hear(event, now_ns)
            advance(t_ns)
        engines = [each for each in CLEAN.cluster.engines if each.node == name]
        return {each.name: node.learned(each.name, t_ns) for each in engines}

    assert learned(at_once=True) == learned(at_once=False)


def test_recorded_samples_equal_those_of_the_page_text() -> None:
    rows = rows_of(golden_snapshot(), golden_snapshot().taken_ns)
    pages = ScrapedPages("east", scrapes=1)
    pages.ingest("n1", rows, 100.0)

    kept = {
        (name, frozenset(series.labels.items()))
        for name, many in pages.window(0.0, 100.0).families.items()
        for series in many
    }
    values = {
        (name, frozenset(series.labels.items())): float(series.values[0])
        for name, many in pages.window(0.0, 100.0).families.items()
        for series in many
    }
    scraped = {"cluster": "east", "node": "n1", "instance": "n1:9847", "job": "disagg-node"}
    text = PageText().write(rows, openmetrics=False).decode()
    shown = {
        (sample.name, frozenset({**sample.labels, **scraped}.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert kept == shown.keys()
    assert values == pytest.approx(shown)


def test_each_cause_is_drawn_often_enough_and_half_of_all_is_clean() -> None:
    by_cause: Counter[Cause] = Counter()
    for kind in TOLD.kinds:
        for cause in TOLD.cause(kind)[:1]:
            by_cause[cause] += TOLD.count(kind)

    clean = sum(TOLD.count(kind) for kind in TOLD.kinds if not TOLD.cause(kind))
    assert by_cause.keys() == set(Cause)
    assert min(by_cause.values()) >= 20
    assert sum(by_cause.values()) + clean >= 800


@pytest.mark.parametrize("kind", TOLD.kinds)
def test_a_fault_affects_only_engines_of_its_cluster(kind: str) -> None:
    scenario = draw_scenario(TOLD, kind, "7-0")

    there = {EngineKey(engine.node, engine.name) for engine in scenario.cluster.engines}
    assert scenario.truth.engines <= there
    assert 2 <= len(there) <= 16 or scenario.pool(Role.MIXED)
    assert bool(scenario.faults) is bool(scenario.truth.causes)
    scenario.simulation()  # refuses a fault of what there is not


def played(truth: Truth, *rounds: Round) -> Played:
    scenario = replace(
        draw_scenario(TOLD, "long_to_one", "0-0"), scrape_seconds=15.0, end_seconds=360.0
    )
    scenario = replace(scenario, truth=truth)
    return Played(scenario, truth, 1.0, 0.1, 0.0, rounds, {}, 1.0, 0.1)


def found(t_seconds: float, cause: Cause, *engines: EngineKey) -> Round:
    said = Said(cause, Role.PREFILL, frozenset(engines), 1.0, 0.9)
    return Round(t_seconds, DiagnosisOutcome.FOUND, (said,), ranked=(cause,))


ONE, OTHER = sorted(draw_scenario(TOLD, "long_to_one", "0-0").pool(Role.PREFILL))[:2]
QUIET = Round(150.0, DiagnosisOutcome.NO_BOTTLENECK, ())
ROUTED = Truth((Cause.ROUTING,), frozenset({ONE}))


def test_the_finding_at_the_deadline_is_scored_and_the_first_right_one_timed() -> None:
    scored = score(
        played(
            ROUTED,
            QUIET,
            found(210.0, Cause.DEMAND),
            found(225.0, Cause.ROUTING, ONE),
            found(400.0, Cause.DEMAND),
        )
    )

    assert (scored.engine, scored.cause, scored.blamed) == (True, True, False)
    assert scored.delay_seconds == 45.0


def test_naming_another_engine_or_the_pool_is_scored_as_wrong() -> None:
    for engines in ((OTHER,), (), (ONE, OTHER)):
        assert not score(played(ROUTED, found(225.0, Cause.ROUTING, *engines))).engine


def test_naming_all_engines_of_a_role_counts_as_naming_the_pool() -> None:
    pool = draw_scenario(TOLD, "long_to_one", "0-0").pool(Role.PREFILL)
    demand = Truth((Cause.DEMAND,))

    assert score(played(demand, found(225.0, Cause.DEMAND))).engine
    assert score(played(demand, found(225.0, Cause.DEMAND, *pool))).engine
    assert not score(played(demand, found(225.0, Cause.DEMAND, ONE))).engine


def test_naming_part_of_the_pool_is_right_if_the_fault_hits_by_chance() -> None:
    giants = Truth((Cause.GIANTS,), is_chance=True)

    assert score(played(giants, found(225.0, Cause.GIANTS, ONE))).engine
    assert score(played(giants, found(225.0, Cause.GIANTS))).engine


def test_naming_a_slight_true_fault_is_no_false_alarm_and_naming_another_is() -> None:
    slight = replace(
        played(ROUTED, QUIET, found(225.0, Cause.ROUTING, ONE)), truth=Truth(), noise_seconds=0.1
    )
    other = replace(slight, rounds=(QUIET, found(225.0, Cause.DEMAND)))

    assert not score(slight).blamed
    assert score(replace(slight, cost_seconds=0.05)).blamed
    assert score(other).blamed


def test_naming_either_of_two_slight_faults_is_no_false_alarm() -> None:
    slow = SecondFault(Truth((Cause.SLOW_GPU,), frozenset({OTHER})), ())
    one = replace(played(ROUTED, QUIET, found(225.0, Cause.SLOW_GPU, OTHER)), truth=Truth())
    two = replace(one, scenario=replace(one.scenario, second=slow))

    assert score(one).blamed
    assert not score(two).blamed


def test_of_two_faults_either_may_rank_first_and_both_must_rank_in_the_top_two() -> None:
    slow = Truth((Cause.SLOW_GPU,), frozenset({OTHER}))
    routing = found(225.0, Cause.ROUTING, ONE)
    gpu = found(225.0, Cause.SLOW_GPU, OTHER)
    both = replace(
        routing, findings=(*gpu.findings, *routing.findings), ranked=(*gpu.ranked, *routing.ranked)
    )

    one, two = (score(replace(played(ROUTED, each), second=slow)) for each in (gpu, both))

    assert (one.engine, one.cause, one.cause_in_two) == (True, True, False)
    assert (two.engine, two.cause, two.cause_in_two) == (True, True, True)


def test_an_alternative_cause_counts_only_if_it_ranks_second() -> None:
    wrong = found(225.0, Cause.SLOW_GPU, ONE)
    doubted = replace(wrong, ranked=(Cause.SLOW_GPU, Cause.ROUTING))
    late = replace(wrong, ranked=(Cause.SLOW_GPU, Cause.DEMAND, Cause.ROUTING))

    scores = [score(played(ROUTED, each)) for each in (wrong, doubted, late)]

    assert [each.cause for each in scores] == [False, False, False]
    assert [each.cause_in_two for each in scores] == [False, True, False]


def test_a_first_suspicion_without_a_finding_counts_in_the_top_two() -> None:
    right = replace(QUIET, t_seconds=225.0, ranked=(Cause.ROUTING, Cause.DEMAND))
    late = replace(right, ranked=(Cause.DEMAND, Cause.ROUTING))

    scores = [score(played(ROUTED, each)) for each in (right, late)]

    assert [(each.engine, each.cause, each.cause_in_two) for each in scores] == [
        (False, False, True),
        (False, False, False),
    ]


def test_a_case_may_be_undecided_if_what_is_missing_is_named() -> None:
    honest = Round(225.0, DiagnosisOutcome.UNDECIDED, (), ("transfers",))
    cases = {each: played(ROUTED, each) for each in (honest, replace(honest, missing=()), QUIET)}

    assert [is_case_right(one, score(one)) for one in cases.values()] == [True, False, False]


def test_a_fault_older_than_the_recording_may_be_found_until_its_end() -> None:
    truth = Truth((Cause.HOST_BOUND,), frozenset({ONE}))
    late = played(truth, QUIET, found(345.0, Cause.HOST_BOUND, ONE))
    static = replace(late, scenario=replace(late.scenario, onset_seconds=0.0))

    assert not score(late).cause
    assert score(static).cause


def test_one_round_makes_a_clean_run_blamed_or_after_warm_up_undecided() -> None:
    cold = Round(30.0, DiagnosisOutcome.UNDECIDED, ())

    assert not score(played(Truth(), cold, QUIET)).undecided
    assert score(played(Truth(), replace(cold, t_seconds=90.0), QUIET)).undecided
    assert not score(played(Truth(), QUIET)).blamed
    assert score(played(Truth(), QUIET, found(200.0, Cause.DEMAND), QUIET)).blamed
