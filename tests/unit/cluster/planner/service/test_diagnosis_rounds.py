from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from html import escape

import pytest

from disagg_cluster.planner.diagnose.verdict.values import (
    ModelDiagnosis,
    ModelKey,
)
from disagg_cluster.planner.diagnose.words.diagnosis_text import diagnoses_text
from disagg_cluster.planner.service.diagnosis_rounds import DiagnosisRounds
from disagg_cluster.planner.service.diagnosis_rows import write_diagnoses
from disagg_cluster.planner.service.planner_landing import PlannerLanding
from disagg_cluster.planner.service.planner_state import PlannerState, planner_rows
from disagg_cluster.prometheus.prometheus_api import NoAnswerError
from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.model import SECOND_NS
from support.diagnosed import CLEAN, FOUND, NOW_SECONDS, SLOW_GPU, UNDECIDED, WELL

EMPTY = PlannerState(None, 0)
OF_SLOW = ("gpu-7", "prefill-1", "llama", "search", "prefill", "slow_gpu")
OF_POOL = ("", "", "llama", "search", "decode", "demand_above_capacity")


@dataclass
class Diagnosing:
    """Rounds with scripted results, durations and failures."""

    found: tuple[ModelDiagnosis, ...] = (FOUND,)
    took_seconds: float = 0.0
    error: Exception | None = None
    now_ns: int = 0
    rounds: DiagnosisRounds = field(init=False)

    def __post_init__(self) -> None:
        self.rounds = DiagnosisRounds(self._diagnose, 15.0, lambda: self.now_ns)

    def _diagnose(self, _now_seconds: float) -> tuple[ModelDiagnosis, ...]:
        self.now_ns += int(self.took_seconds * SECOND_NS)
        if self.error is not None:
            raise self.error
        return self.found

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        state = self.rounds.added_to(EMPTY)
        return planner_rows(state, self.now_ns).samples.get(name, {})

    def page(self) -> str:
        state = self.rounds.added_to(EMPTY)
        return PlannerLanding("Planner", lambda: state, lambda: self.now_ns).page("", "")


def test_a_verdict_has_engine_cause_cost_and_action_and_no_engine_for_a_pool() -> None:
    diagnosing = Diagnosing()

    diagnosing.rounds.run_round(NOW_SECONDS)

    assert diagnosing.samples("disagg_bottleneck") == {OF_SLOW: 0.97, OF_POOL: 0.6}
    costs = {OF_SLOW: 0.412, OF_POOL: 0.05}
    assert diagnosing.samples("disagg_bottleneck_ttft_cost_seconds") == costs
    assert diagnosing.samples("disagg_bottleneck_action_info") == {
        (*OF_SLOW, "route_away"): 1,
        (*OF_POOL, "set_max_num_seqs"): 1,
    }
    assert diagnosing.samples("disagg_bottlenecks") == {("llama", "search"): 2}
    assert diagnosing.samples("disagg_collector_success") == {("planner:diagnosis",): 1}


def test_only_current_verdicts_are_exported() -> None:
    diagnosing = Diagnosing()
    diagnosing.rounds.run_round(NOW_SECONDS)

    diagnosing.found = (CLEAN,)
    diagnosing.rounds.run_round(NOW_SECONDS + 15)

    assert diagnosing.samples("disagg_bottleneck") == {}
    assert diagnosing.samples("disagg_bottlenecks") == {("llama", "search"): 0}


def test_an_undecided_model_has_a_reason_and_no_count() -> None:
    rows = MetricRows()

    write_diagnoses(rows, [UNDECIDED, replace(UNDECIDED, model=CLEAN.model, missing=())])

    assert rows.samples == {
        "disagg_bottleneck_undecided": {
            ("qwen", "", "missing_evidence"): 1,
            ("llama", "search", "unexplained"): 1,
        }
    }


def test_each_engine_of_a_verdict_on_several_has_a_row() -> None:
    rows = MetricRows()
    both = replace(SLOW_GPU, engines=(*SLOW_GPU.engines, WELL))

    write_diagnoses(rows, [replace(FOUND, findings=(both,))])

    assert {labels[:2] for labels in rows.samples["disagg_bottleneck"]} == {
        ("gpu-7", "prefill-1"),
        ("gpu-6", "prefill-0"),
    }
    assert rows.samples["disagg_bottlenecks"] == {("llama", "search"): 1}


def test_a_failed_round_is_reported_and_old_verdicts_expire() -> None:
    diagnosing = Diagnosing()
    diagnosing.rounds.run_round(NOW_SECONDS)
    diagnosing.error = NoAnswerError("no answer from http://prometheus: refused")

    diagnosing.rounds.run_round(NOW_SECONDS + 15)
    assert diagnosing.samples("disagg_collector_success") == {("planner:diagnosis",): 0}
    assert diagnosing.samples("disagg_bottleneck") != {}

    diagnosing.now_ns = 46 * SECOND_NS
    assert diagnosing.samples("disagg_bottleneck") == {}
    assert diagnosing.samples("disagg_bottlenecks") == {}
    assert "What was diagnosed is too old to be shown." in diagnosing.page()


def test_an_unexpected_failure_is_counted_and_ends_only_its_round() -> None:
    diagnosing = Diagnosing(error=ZeroDivisionError())

    diagnosing.rounds.run_round(NOW_SECONDS)

    assert diagnosing.samples("disagg_collector_unexpected_failures_total") == {("planner",): 1}
    assert "Failing: planner:diagnosis" in diagnosing.page()


def test_several_clusters_are_rejected() -> None:
    west = replace(CLEAN, model=ModelKey("west", "", "llama"))
    diagnosing = Diagnosing((CLEAN, west))

    diagnosing.rounds.run_round(NOW_SECONDS)

    assert diagnosing.samples("disagg_collector_success") == {("planner:diagnosis",): 0}
    assert diagnosing.samples("disagg_bottlenecks") == {}


@pytest.mark.parametrize(("took_seconds", "rest_seconds"), [(0.5, 14.5), (3.0, 12.0), (8.0, 32.0)])
def test_long_rounds_use_at_most_a_fifth_of_a_core(
    took_seconds: float, rest_seconds: float
) -> None:
    diagnosing = Diagnosing(took_seconds=took_seconds)

    rest = diagnosing.rounds.run_round(NOW_SECONDS)

    assert rest == pytest.approx(rest_seconds)
    diagnosing.now_ns += int(rest * SECOND_NS)
    assert diagnosing.samples("disagg_bottleneck") != {}


def test_rounds_run_on_a_thread_until_stopped() -> None:
    ending, looked = threading.Event(), []

    def look(now_seconds: float) -> tuple[ModelDiagnosis, ...]:
        looked.append(now_seconds)
        if len(looked) == 3:
            ending.set()
        return ()

    DiagnosisRounds(look, 0.01).run(ending)

    assert len(looked) == 3


def test_the_html_page_has_the_escaped_text_of_the_command() -> None:
    odd = replace(FOUND, model=ModelKey("east", "", "a<b"))
    diagnosing = Diagnosing((odd,))
    diagnosing.rounds.run_round(NOW_SECONDS)

    page = diagnosing.page()

    assert escape(diagnoses_text([odd])) in page
    assert "a<b" not in page
    assert "<h2>What holds first tokens back</h2>" in page


def test_the_html_page_omits_bottlenecks_before_the_first_round() -> None:
    assert "What holds first tokens back" not in Diagnosing().page()
