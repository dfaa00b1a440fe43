from __future__ import annotations

import errno
import gc
import logging
import os
import weakref
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path

import numpy as np
import pytest

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.advice.demands import DemandBuilder
from disagg_cluster.planner.advice.plan_text import plan_text
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.history.prometheus_history import NoLoadYetError
from disagg_cluster.planner.moving.acting import Acting
from disagg_cluster.planner.moving.local_mover import LocalMover
from disagg_cluster.planner.service.past_waste import PastWaste
from disagg_cluster.planner.service.planner_landing import PlannerLanding
from disagg_cluster.planner.service.planner_rounds import PlannerRounds
from disagg_cluster.planner.service.planner_state import planner_rows
from disagg_cluster.planner.service.rolling_history import RollingHistory
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_cluster.planner.settings.sections import ModelSection, OfferSection, WorkerSection
from disagg_cluster.prometheus.prometheus_api import NoAnswerError
from disagg_exporter.model import Role
from support.plan_demands import costs

EVERY_SECONDS = 300.0
STEP_SECONDS = 300.0
WORKERS = tuple(
    WorkerSection(
        role=role,
        gpu_name="NVIDIA H200",
        gpus=4,
        priced_as="meta-llama/Llama-3.3-70B-Instruct",
        engines=engines,
    )
    for role, engines in ((Role.PREFILL, 1), (Role.DECODE, 2))
)
CONFIG = PlannerConfig(
    every_seconds=EVERY_SECONDS,
    gpus=(OfferSection(gpu_name="NVIDIA H200", most_gpus=64),),
    models=(ModelSection(model_name="a<b", workers=WORKERS),),
)
HOURS = 3600.0
NOW = 1_000_000 * 60.0


@dataclass
class Prometheus:
    """Has a load of some hours, of one or more clusters, or does not answer."""

    hours: float = 20.0
    clusters: tuple[str, ...] = ("east",)
    down: bool = False
    unused: bool = False
    counted: bool = True
    calls: list[HistoryRequest] = field(default_factory=list)

    def read(self, request: HistoryRequest) -> list[LoadHistory]:
        if self.down:
            raise NoAnswerError("no answer from http://prometheus: refused")
        if self.unused:
            raise NoLoadYetError("no engine has served a request yet")
        times = request.first_seconds + STEP_SECONDS * np.arange(request.steps)
        values = np.where(times >= NOW - self.hours * HOURS, 50 + 10 * np.sin(times / 900), np.nan)
        series = LoadSeries(request.first_seconds, STEP_SECONDS, values)
        requests = replace(series, values=series.values / 50)
        return [
            LoadHistory(LoadKey(each, "a<b"), series, series, requests if self.counted else None)
            for each in self.clusters
        ]


@dataclass
class Planner:
    prometheus: Prometheus = field(default_factory=Prometheus)
    now_ns: int = 0
    engines: ClusterEngines | None = field(default_factory=ClusterEngines)
    acting: Acting | None = None
    shown_meanwhile: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        history = RollingHistory(self.prometheus, 24 * HOURS, STEP_SECONDS)
        self.rounds = PlannerRounds(
            history,
            lambda _now: self.asked(),
            CONFIG,
            acting=self.acting,
            now_ns=lambda: self.now_ns,
        )

    def asked(self) -> ClusterEngines:
        """Return the running engines, or fail; record what the page shows meanwhile."""
        self.shown_meanwhile = self.names()
        if self.engines is None:
            raise NoAnswerError("no answer from http://prometheus: timed out")
        return self.engines

    def names(self) -> set[str]:
        return set(planner_rows(self.rounds.state, self.now_ns).samples)

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        return planner_rows(self.rounds.state, self.now_ns).samples.get(name, {})


@pytest.fixture(scope="module")
def after_a_round() -> Planner:
    """A planner after its first round, read-only: tests that run rounds make their own."""
    planner = Planner()
    planner.rounds.run_round(NOW)
    return planner


def test_before_the_first_round_is_over_there_is_nothing_to_show() -> None:
    planner = Planner()

    assert planner.rounds.why_not_ready == "the first round is not over"
    assert planner.names() == {"disagg_planner_build_info"}


def test_a_planner_has_no_build_info_of_a_node(after_a_round: Planner) -> None:
    """Alerts and dashboards count pages with `disagg_build_info` as nodes."""
    assert "disagg_build_info" not in after_a_round.names()
    assert set(after_a_round.samples("disagg_planner_build_info").values()) == {1.0}


def test_a_scrape_during_a_round_finds_forecasts_with_their_health() -> None:
    shown: list[set[str]] = []

    def scraped() -> dict[str, float]:
        shown.append(set(planner_rows(rounds.state, 0).samples))
        return {}

    history = RollingHistory(Prometheus(), 24 * HOURS, STEP_SECONDS)
    rounds = PlannerRounds(
        history, lambda _now: ClusterEngines(), CONFIG, process=scraped, now_ns=lambda: 0
    )
    rounds.run_round(NOW)

    forecast = [names for names in shown if "disagg_forecast_tokens_per_second" in names]
    assert forecast
    assert all("disagg_collector_success" in names for names in forecast)


def test_a_round_gives_each_phase_a_load_or_a_reason_at_each_horizon(
    after_a_round: Planner,
) -> None:
    planner = after_a_round
    assert planner.rounds.why_not_ready == ""
    loads = planner.samples("disagg_forecast_tokens_per_second")
    undecided = planner.samples("disagg_plan_undecided")
    assert {labels[:4] for labels in loads} == {
        ("a<b", "", phase, horizon)
        for phase in ("prefill", "decode")
        for horizon in ("5m", "15m", "1h", "6h")
    }
    assert {labels[4] for labels in loads} == {"0.05", "0.5", "0.9", "0.95"}
    assert set(undecided) == {
        ("a<b", "", phase, "24h", "short_history") for phase in ("prefill", "decode")
    }
    errors = planner.samples("disagg_plan_error_ratio")
    assert {labels[2:] for labels in errors} >= {("prefill", "5m"), ("decode", "1h")}


def test_a_failing_prometheus_is_reported_and_old_figures_expire() -> None:
    planner = Planner()
    planner.rounds.run_round(NOW)
    planner.prometheus.down = True

    planner.now_ns = int(EVERY_SECONDS * 1e9)
    planner.rounds.run_round(NOW + EVERY_SECONDS)
    assert planner.samples("disagg_collector_success")["planner:history",] == 0
    assert "disagg_forecast_tokens_per_second" in planner.names()

    planner.now_ns = int(3.1 * EVERY_SECONDS * 1e9)
    assert planner.names() == {
        *("disagg_planner_build_info", "disagg_collector_success"),
        *("disagg_collector_duration_seconds", "disagg_collector_last_success_timestamp_seconds"),
        "disagg_collector_unexpected_failures_total",
    }
    page = PlannerLanding("Planner", lambda: planner.rounds.state, lambda: planner.now_ns)
    assert "too old to be shown" in page.page("", "")
    assert "Failing: planner:history" in page.page("", "")

    planner.prometheus.down = False
    planner.rounds.run_round(NOW + 4 * EVERY_SECONDS)
    assert planner.samples("disagg_collector_success")["planner:history",] == 1
    assert "disagg_forecast_tokens_per_second" in planner.names()


def test_before_the_first_successful_round_the_planner_is_not_ready() -> None:
    planner = Planner(Prometheus(down=True))

    planner.rounds.run_round(NOW)

    assert planner.rounds.why_not_ready == "no answer from http://prometheus: refused"
    assert "disagg_forecast_tokens_per_second" not in planner.names()


def test_a_new_cluster_without_users_is_no_failure() -> None:
    planner = Planner(Prometheus(unused=True))

    planner.rounds.run_round(NOW)

    assert not planner.rounds.why_not_ready
    assert set(planner.samples("disagg_collector_success").values()) == {1}
    assert planner.samples("disagg_plan_undecided") == {}

    planner.prometheus.unused = False
    planner.rounds.run_round(NOW + EVERY_SECONDS)
    assert planner.samples("disagg_plan_undecided")


def test_a_move_that_cannot_be_polled_fails_its_collector_and_not_the_planner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_now_seconds: float) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    acting = Acting(LocalMover(tmp_path / "control.sock"), logging.getLogger("test"))
    planner = Planner(acting=acting)
    planner.rounds.run_round(NOW)
    assert planner.samples("disagg_collector_success")["planner:rebalance",] == 1

    monkeypatch.setattr(acting, "poll", failing)
    planner.rounds.refresh()
    assert planner.samples("disagg_collector_success")["planner:rebalance",] == 0

    planner.rounds.run_round(NOW + EVERY_SECONDS)
    assert planner.samples("disagg_collector_success")["planner:rebalance",] == 1


def test_several_clusters_are_rejected() -> None:
    planner = Planner(Prometheus(clusters=("east", "west")))

    planner.rounds.run_round(NOW)

    assert "several clusters ('east', 'west')" in planner.rounds.why_not_ready
    assert "disagg_forecast_tokens_per_second" not in planner.names()


def test_a_model_without_load_for_a_day_is_left_out() -> None:
    planner = Planner()
    planner.rounds.run_round(NOW)

    planner.prometheus.clusters = ()
    planner.rounds.run_round(NOW + 26 * HOURS)

    assert planner.rounds.state.outlooks == ()
    assert planner.samples("disagg_plan_undecided") == {}


def test_what_the_engines_of_a_model_learned_is_forgotten_with_its_load() -> None:
    planner = Planner()
    learned = costs("NVIDIA H200", 4)
    kind = CostKey("a<b", "", Role.DECODE, "NVIDIA H200", 4)
    planner.engines = ClusterEngines({kind: 2}, {kind: learned})
    planner.rounds.run_round(NOW)
    known = weakref.ref(learned)
    planner.engines = ClusterEngines()
    del learned
    gc.collect()
    assert known() is not None

    planner.prometheus.clusters = ()
    planner.rounds.run_round(NOW + 26 * HOURS)
    gc.collect()

    assert known() is None


def test_external_names_are_escaped_on_the_html_page(
    after_a_round: Planner,
) -> None:
    planner = after_a_round

    page = PlannerLanding("<Planner>", lambda: planner.rounds.state, lambda: 0).page("", "")

    assert "model a&lt;b" in page
    assert "a<b" not in page
    assert "<Planner>" not in page
    assert "undecided: 240 steps of history" in page


def test_the_plan_has_current_needed_and_recommended_gpus(
    after_a_round: Planner,
) -> None:
    planner = after_a_round

    gpus = planner.samples("disagg_plan_gpus")
    decode = ("a<b", "", "NVIDIA H200", "decode")
    assert gpus[*decode, "current", "", ""] == 8
    assert gpus[*decode, "needed", "1h", "0.9"] == 4
    assert gpus[*decode, "recommended", "6h", ""] == 4
    short = planner.samples("disagg_plan_shortfall_gpus")
    assert short[*decode, "1h", "0.9"] == 0
    assert planner.samples("disagg_plan_idle_gpus")["a<b", "", "current"] > 0
    assert planner.samples("disagg_collector_success")["planner:plan",] == 1


def test_the_html_page_has_the_plan_as_the_command_prints_it(
    after_a_round: Planner,
) -> None:
    planner = after_a_round
    plan = planner.rounds.state.plan
    assert plan is not None

    page = PlannerLanding("Planner", lambda: planner.rounds.state, lambda: 0).page("", "")

    assert escape(plan_text(plan, "east", planner.rounds.state.past)) in page
    assert "decode on NVIDIA H200: 90 % of futures need" in page


def test_without_known_requests_there_is_a_reason_and_current_gpus_but_no_plan() -> None:
    planner = Planner(Prometheus(counted=False))
    key = CostKey("a<b", "", Role.DECODE, "NVIDIA L4", 2)
    planner.engines = ClusterEngines({key: 3})

    planner.rounds.run_round(NOW)

    assert planner.samples("disagg_plan_gpus") == {
        ("a<b", "", "NVIDIA L4", "decode", "current", "", ""): 6
    }
    undecided = planner.samples("disagg_plan_undecided")
    assert ("a<b", "", "", "", "no_forecast") in undecided


def test_a_plan_is_shown_until_the_next_is_made() -> None:
    """Otherwise each round would restart an alert that waits ten minutes."""
    planner = Planner()
    planner.rounds.run_round(NOW)

    planner.rounds.run_round(NOW + EVERY_SECONDS)

    assert {"disagg_plan_gpus", "disagg_plan_shortfall_gpus"} <= planner.shown_meanwhile


def test_after_a_failed_plan_no_older_one_is_shown() -> None:
    planner = Planner()
    planner.engines = ClusterEngines({CostKey("a<b", "", Role.DECODE, "NVIDIA L4", 2): 3})
    planner.rounds.run_round(NOW)
    assert "disagg_plan_gpus" in planner.names()

    planner.engines = None
    planner.rounds.run_round(NOW + EVERY_SECONDS)

    assert planner.samples("disagg_collector_success")["planner:plan",] == 0
    assert "disagg_forecast_tokens_per_second" in planner.names()
    assert "disagg_plan_gpus" not in planner.names()


def test_wasted_gpus_are_shown_by_role_and_follow_the_running_engines() -> None:
    planner = Planner()
    planner.rounds.run_round(NOW)
    wasted = planner.samples("disagg_plan_wasted_gpus")
    assert wasted == {("a<b", "", "prefill"): 0.0, ("a<b", "", "decode"): 4.0}

    first = planner.rounds.state.past
    planner.rounds.run_round(NOW + EVERY_SECONDS)
    assert planner.rounds.state.past == first
    planner.rounds.run_round(NOW + HOURS)
    assert planner.rounds.state.past != first

    key = CostKey("a<b", "", Role.DECODE, "NVIDIA H200", 4)
    planner.engines = ClusterEngines({key: 3})
    planner.rounds.run_round(NOW + HOURS + EVERY_SECONDS)
    assert "disagg_plan_wasted_gpus" not in planner.names()


def test_past_waste_is_evaluated_again_when_the_clock_is_set_back() -> None:
    (load,) = Prometheus().read(HistoryRequest(NOW - 24 * HOURS, NOW, STEP_SECONDS))
    waste = PastWaste(DemandBuilder(CONFIG), CONFIG)
    first = waste.evaluate([load], ClusterEngines(), NOW)
    set_back = waste.evaluate([load], ClusterEngines(), NOW - 6 * HOURS)

    assert set_back[0] is not first[0]
    assert waste.evaluate([load], ClusterEngines(), NOW - 6 * HOURS)[0] is set_back[0]


def test_past_waste_is_evaluated_for_a_few_models_a_round() -> None:
    section = CONFIG.models[0]
    models = tuple(section.model_copy(update={"model_name": f"m{n}"}) for n in range(6))
    config = CONFIG.model_copy(update={"models": models})
    (load,) = Prometheus().read(HistoryRequest(NOW - 24 * HOURS, NOW, STEP_SECONDS))
    loads = [replace(load, key=LoadKey("east", f"m{n}")) for n in range(6)]
    waste = PastWaste(DemandBuilder(config), config)

    assert len(waste.evaluate(loads, ClusterEngines(), NOW)) == 4
    assert len(waste.evaluate(loads, ClusterEngines(), NOW + EVERY_SECONDS)) == 6
    assert len(waste.evaluate(loads[:2], ClusterEngines(), NOW + 2 * EVERY_SECONDS)) == 2
