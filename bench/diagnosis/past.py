"""What nodes have learned about engines that ran for long before the recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bench.diagnosis.scenario import REPORTING, WALL_OFFSET_SECONDS, Scenario

from disagg_cluster.simulator.cluster.spec import EngineSpec
from disagg_cluster.simulator.load import Constant
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.attribution.cost_model.learned_costs import LearnedCost
from disagg_exporter.model import Role
from support.simulated_node import SECOND_NS, LearnedEngineCosts, SimulatedNode

_LOAD_RATIO = 0.8
_MOST_SECONDS = 180.0
_MOST_REQUESTS = 200
_PACE_SECONDS = 120.0
"""After so many seconds of steps a pace counts as settled."""
_DAY_SECONDS = 86_400.0


def learn(scenario: Scenario) -> Mapping[Role, LearnedEngineCosts]:
    """Run one engine of each role alone for a while, without faults, under the scenario's requests.

    All engines of a role get what that one learned, as they are alike here. Its pace and number of
    steps are scaled to those of a day, which minutes do not change. For a fault that is there from
    the start there is no past without it, so nothing is learned.
    """
    if scenario.faults and scenario.onset_seconds <= 0:
        return {}
    firsts: dict[Role, EngineSpec] = {}
    for engine in scenario.cluster.engines:
        firsts.setdefault(engine.role, replace(engine, node="past"))
    entries = [e for e in scenario.cluster.engines if e.role is not Role.DECODE]
    mix = scenario.load.rate(0.0)
    rate = scenario.usual_requests_per_second / len(entries) * _LOAD_RATIO / scenario.load_ratio
    simulation = Simulation(
        replace(scenario.cluster, engines=tuple(firsts.values())),
        Constant(replace(mix, requests_per_second=rate)),
        lengths=scenario.lengths,
        reporting=replace(REPORTING, page_seconds=None),
        seed=scenario.seed + 1,
    )
    node = SimulatedNode(
        "past", simulation, wall_offset_seconds=WALL_OFFSET_SECONDS, books_energy=False
    )
    end_seconds = min(_MOST_SECONDS, _MOST_REQUESTS / rate)
    t_ns = 0
    while t_ns < end_seconds * SECOND_NS:
        t_ns += 5 * SECOND_NS
        for now_ns, event in simulation.events(t_ns):
            if simulation.node_of(event) is not None:
                node.hear(event, now_ns)
        # Its costs are learned at the end: steps teach the same one by one and together.
        node.learn_limits(t_ns)
    learned = {role: node.learned(engine.name, t_ns) for role, engine in firsts.items()}
    times = _DAY_SECONDS * SECOND_NS / t_ns
    return {
        role: replace(
            each, costs={rank: _of_a_day(cost, times) for rank, cost in each.costs.items()}
        )
        for role, each in learned.items()
    }


def _of_a_day(cost: LearnedCost, times: float) -> LearnedCost:
    prefill, decode, mixed = (round(count * times) for count in cost.steps)
    pace_ratio, _ = cost.usual_pace
    return replace(cost, usual_pace=(pace_ratio, _PACE_SECONDS), steps=(prefill, decode, mixed))
