"""Rebalancing in a round: on the page, as text, and in the accounting."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.advice.demands import DemandBuilder
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.moving.acting import Acting
from disagg_cluster.planner.moving.mover import MoveAnswer, MoveOutcome
from disagg_cluster.planner.plan.gpu_plan import ModelPlan
from disagg_cluster.planner.rebalance.decision import Stay
from disagg_cluster.planner.rebalance.limits import RebalanceMode
from disagg_cluster.planner.rebalance.pool_worker import PoolWorker, WorkerId
from disagg_cluster.planner.rebalance.split_needs import RoleSplit
from disagg_cluster.planner.service.planner_landing import PlannerLanding
from disagg_cluster.planner.service.planner_rounds import PlannerRounds
from disagg_cluster.planner.service.planner_state import planner_rows
from disagg_cluster.planner.service.rebalance_rows import write_rebalance
from disagg_cluster.planner.service.rebalancer import Rebalancer, RebalanceRound
from disagg_cluster.planner.service.rolling_history import RollingHistory
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_cluster.planner.settings.sections import (
    ModelSection,
    RebalanceSection,
    TargetsSection,
    WorkerSection,
)
from disagg_cluster.prometheus.prometheus_api import NoAnswerError
from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.model import Role

NOW = 1_000_000 * 300.0
STEP_SECONDS = 300.0
GPU, MODEL = "NVIDIA H100 80GB HBM3", "meta-llama/Llama-3.1-8B-Instruct"
PREFILL, DECODE = (
    CostKey("llama", "default", role, GPU, 1) for role in (Role.PREFILL, Role.DECODE)
)
CONFIG = PlannerConfig(
    targets=TargetsSection(ttft_seconds=5.0, itl_seconds=0.03),
    models=(
        ModelSection(
            model_name="llama",
            workers=tuple(
                WorkerSection(role=role, gpu_name=GPU, priced_as=MODEL)
                for role in (Role.PREFILL, Role.DECODE)
            ),
        ),
    ),
)


@dataclass
class _Load:
    """Ten requests per second with long outputs and short prompts, for ten hours."""

    def read(self, request: HistoryRequest) -> list[LoadHistory]:
        times = request.first_seconds + STEP_SECONDS * np.arange(request.steps)
        rates = np.where(times >= NOW - 36_000, 10 + 0.2 * np.sin(times), np.nan)

        def series(factor: float) -> LoadSeries:
            return LoadSeries(request.first_seconds, STEP_SECONDS, rates * factor)

        key = LoadKey("east", "llama", "default")
        return [LoadHistory(key, series(2000.0), series(1200.0), series(1.0))]


@dataclass
class _Planner:
    """Six prefill and two decode engines, at first."""

    mode: RebalanceMode = RebalanceMode.ADVISE
    engines: ClusterEngines = field(default_factory=lambda: engines(6, 2))

    def __post_init__(self) -> None:
        config = CONFIG.model_copy(update={"rebalance": RebalanceSection(mode=self.mode)})
        self.rounds = PlannerRounds(
            RollingHistory(_Load(), 24 * 3600.0, STEP_SECONDS),
            lambda _now: self.engines,
            config,
            now_ns=lambda: 0,
        )

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        return planner_rows(self.rounds.state, 0).samples.get(name, {})

    def page(self) -> str:
        return PlannerLanding("east", lambda: self.rounds.state, lambda: 0).page("", "")


def engines(prefill: int, decode: int) -> ClusterEngines:
    workers = tuple(
        PoolWorker("node-a", f"{kind.role}-{number}", kind, True, float(9 - number), used)
        for kind, count, used in ((PREFILL, prefill, 0.3), (DECODE, decode, 1.2))
        for number in range(count)
    )
    return ClusterEngines({PREFILL: prefill, DECODE: decode}, {}, workers)


@pytest.fixture(scope="module")
def advising() -> _Planner:
    """A planner after two rounds, ten minutes apart; read-only."""
    planner = _Planner()
    planner.rounds.run_round(NOW)
    planner.rounds.run_round(NOW + 600.0)
    return planner


def test_the_page_names_the_worker_to_move_and_the_cost_of_a_move(
    advising: _Planner,
) -> None:
    owner = ("llama", "default")

    assert advising.samples("disagg_rebalance_mode_info") == {("advise",): 1}
    assert advising.samples("disagg_rebalance_advised_info") == {
        ("node-a", "prefill-5", *owner, "prefill", "decode"): 1
    }
    # Nothing was measured: drain plus lead time of the planner file.
    assert advising.samples("disagg_rebalance_move_cost_seconds") == {("assumed",): 660.0}
    assert list(advising.samples("disagg_rebalance_gain_seconds")) == [owner]
    assert advising.samples("disagg_rebalance_moves_total") == {}


def test_time_over_target_is_counted_for_actual_and_shadow(advising: _Planner) -> None:
    over = advising.samples("disagg_rebalance_over_target_seconds_total")

    assert over["llama", "default", "actual"] == 600.0
    assert over["llama", "default", "shadow"] == 600.0
    assert advising.samples("disagg_rebalance_shadow_moves_total") == {("llama", "default"): 1}


def test_the_html_page_has_the_advice_as_text(advising: _Planner) -> None:
    page = advising.page()

    assert "default/llama: move prefill-5 on node-a (4 requests) from prefill to decode" in page
    assert "+0 min in target had advice been followed, 1 move" in page


def round_of(mode: RebalanceMode, there: ClusterEngines) -> RebalanceRound:
    config = CONFIG.model_copy(update={"rebalance": RebalanceSection(mode=mode)})
    history = RollingHistory(_Load(), 24 * 3600.0, STEP_SECONDS).read(NOW)
    return Rebalancer(DemandBuilder(config), config).run_round(history, there, NOW)


def test_in_mode_off_there_is_no_advice() -> None:
    rows = MetricRows()
    write_rebalance(rows, round_of(RebalanceMode.OFF, engines(6, 2)))

    assert rows.samples["disagg_rebalance_mode_info"] == {("off",): 1}
    assert set(rows.samples) == {
        "disagg_rebalance_mode_info",
        "disagg_rebalance_move_cost_seconds",
    }


def test_a_measured_cost_replaces_the_assumed_one() -> None:
    rows = MetricRows()
    measured = replace(engines(4, 4), downtime_seconds=41.0)
    write_rebalance(rows, round_of(RebalanceMode.ADVISE, measured))

    assert rows.samples["disagg_rebalance_move_cost_seconds"] == {("measured",): 41.0}


class _Refusing:
    """Reaches no node."""

    def begin(self, _worker: PoolWorker, _to_role: Role, _request_id: str) -> MoveAnswer:
        return MoveAnswer(MoveOutcome.REFUSED, "not here")

    def poll(self, _worker: PoolWorker, _to_role: Role, _request_id: str) -> MoveAnswer:
        raise AssertionError("nothing is under way")


def test_the_accounting_goes_on_when_the_clock_is_set_back() -> None:
    rebalancer = Rebalancer(DemandBuilder(CONFIG), CONFIG)
    past = RollingHistory(_Load(), 24 * 3600.0, STEP_SECONDS)
    counted = []
    for now in (NOW, NOW - 14_400.0, NOW - 14_400.0 + 600.0):
        (model,) = rebalancer.run_round(past.read(now), engines(6, 2), now).models
        assert model.accounting is not None
        counted.append(model.accounting.over_target_seconds)

    assert counted == [0.0, 0.0, 600.0]


def test_acting_asks_for_the_move_and_its_shadow_stays() -> None:
    config = CONFIG.model_copy(update={"rebalance": RebalanceSection(mode=RebalanceMode.ACT)})
    acting = Acting(_Refusing(), logging.getLogger("test"))
    rebalancer = Rebalancer(DemandBuilder(config), config, acting)
    history = RollingHistory(_Load(), 24 * 3600.0, STEP_SECONDS).read(NOW)
    rebalancer.run_round(history, engines(6, 2), NOW)
    rebalancer.poll_move(NOW + 5.0)
    latest = rebalancer.run_round(history, engines(6, 2), NOW + 60.0)

    assert latest.moves == {("llama", "default", "refused"): 1}
    (model,) = latest.models
    assert model.advice == Stay("the last move ended 60 s ago: cooling down")
    assert model.accounting is not None
    assert (model.accounting.shadow, model.accounting.moves) == (RoleSplit(6, 2), 0)


def test_acting_asks_another_worker_after_a_refusal() -> None:
    config = CONFIG.model_copy(update={"rebalance": RebalanceSection(mode=RebalanceMode.ACT)})
    rebalancer = Rebalancer(
        DemandBuilder(config), config, Acting(_Refusing(), logging.getLogger("test"))
    )
    history = RollingHistory(_Load(), 24 * 3600.0, STEP_SECONDS).read(NOW)

    asked = []
    for number in range(3):
        latest = rebalancer.run_round(history, engines(6, 2), NOW + 300.0 * number)
        (model,) = latest.models
        assert model.worker is not None
        asked.append(model.worker.worker)
    assert asked == ["prefill-5", "prefill-4", "prefill-3"]


def test_nothing_moves_while_it_is_not_known_what_has_moved() -> None:
    config = CONFIG.model_copy(update={"rebalance": RebalanceSection(mode=RebalanceMode.ACT)})

    def unreadable(_now_seconds: float) -> dict[WorkerId, tuple[float, ...]]:
        raise NoAnswerError("no answer within 60 s")

    acting = Acting(_Refusing(), logging.getLogger("test"), unreadable)
    rebalancer = Rebalancer(DemandBuilder(config), config, acting)
    with pytest.raises(NoAnswerError):
        rebalancer.run_round(
            RollingHistory(_Load(), 24 * 3600.0, STEP_SECONDS).read(NOW), engines(6, 2), NOW
        )
    assert acting.counts == {}


def with_unseen(found: ClusterEngines) -> ClusterEngines:
    """The same with the last engine's node not seen now."""
    *others, last = found.workers
    return replace(found, workers=(*others, replace(last, node="node-b", is_seen=False)))


def test_nothing_moves_while_a_node_with_engines_of_the_model_is_not_seen() -> None:
    """It may have answered too slowly once: what pools need is not known."""
    config = CONFIG.model_copy(update={"rebalance": RebalanceSection(mode=RebalanceMode.ACT)})
    acting = Acting(_Refusing(), logging.getLogger("test"))
    history = RollingHistory(_Load(), 24 * 3600.0, STEP_SECONDS).read(NOW)

    latest = Rebalancer(DemandBuilder(config), config, acting).run_round(
        history, with_unseen(engines(6, 2)), NOW
    )

    why = "1 engine on node-b, not seen for some minutes: nothing moves until all are seen"
    (model,) = latest.models
    assert model.advice == Stay(f"{why}, or forgotten")
    assert model.split == RoleSplit(6, 2)
    assert latest.moves == {}


def test_a_plan_names_the_engines_that_it_counts_on_nodes_not_seen_now() -> None:
    planner = _Planner(engines=with_unseen(engines(6, 2)))
    planner.rounds.run_round(NOW)

    plan = planner.rounds.state.plan
    assert plan is not None
    (model,) = plan.models
    assert isinstance(model, ModelPlan)
    said = {each.role: each.reasons[-1] for each in model.roles}
    assert said[Role.DECODE] == "counts 1 engine on node-b, not seen for some minutes"
    assert "not seen" not in said[Role.PREFILL]
    assert (
        planner.samples("disagg_plan_gpus")[*("llama", "default", GPU, "decode", "current", "", "")]
        == 2
    )
