"""Runs one scenario with and without its fault, and diagnoses it as time goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from bench.diagnosis.past import learn
from bench.diagnosis.peers import FIRST_TOKEN_FAMILIES, PEERS
from bench.diagnosis.recorder import Recorder, Scraping
from bench.diagnosis.scenario import WALL_OFFSET_SECONDS, Scenario, Truth

from disagg_cluster.planner.diagnose.diagnose import DiagnosisState, diagnose
from disagg_cluster.planner.diagnose.evidence.series_window import Floats, SeriesWindow
from disagg_cluster.planner.diagnose.families import FAMILIES
from disagg_cluster.planner.diagnose.verdict.values import Cause, DiagnosisOutcome, EngineKey
from disagg_cluster.simulator.cluster.event_queue import RequestEnded
from disagg_cluster.simulator.fault import Fault
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.model import SECOND_NS, Role

ROUND_SECONDS = 15.0
"""From one diagnosis to the next."""
WARM_SECONDS = 60.0
_LEAST_COST = 0.05
_LEAST_HURT_SECONDS = 60.0
_PEER_FAMILIES = ("disagg_gpu_utilization_ratio", *FIRST_TOKEN_FAMILIES)
_KEPT = frozenset(
    (*FAMILIES, *(name + part for name in _PEER_FAMILIES for part in ("", "_sum", "_count")))
)


@dataclass(frozen=True, slots=True)
class Said:
    """The scored fields of a finding; without engines it is the role's pool."""

    cause: Cause
    role: Role
    engines: frozenset[EngineKey]
    cost_seconds: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Round:
    """The diagnosis at one time after the start."""

    t_seconds: float
    outcome: DiagnosisOutcome
    findings: tuple[Said, ...]
    missing: tuple[str, ...] = ()
    text: str = ""
    ranked: tuple[Cause, ...] = ()
    """Ranked causes: those of findings, their alternatives, then suspects."""


@dataclass(frozen=True, slots=True)
class Played:
    """A scenario that was run.

    `truth` is the scenario's, or empty where the fault cost too little or hurt for less than a
    minute before the end. `cost_seconds` is what it added to the mean time to first token from its
    onset on, of which `noise_seconds` may be chance. `hurt_seconds`: from the onset until it first
    cost that much over a quarter of a minute. `peers`: the engine that each simple rule names at
    the deadline. Of two faults `truth` is the one that costs more alone, and `second` the other
    unless that costs too little.
    """

    scenario: Scenario
    truth: Truth
    cost_seconds: float
    noise_seconds: float
    hurt_seconds: float
    rounds: tuple[Round, ...]
    peers: dict[str, EngineKey | None]
    cpu_seconds: float
    diagnosis_seconds: float
    second: Truth | None = None


@dataclass(frozen=True, slots=True)
class Waits:
    """Arrival times of requests, and lower bounds of their waits for the first token."""

    arrived_seconds: Floats
    wait_seconds: Floats

    def since(self, begin_seconds: float, end_seconds: float = math.inf) -> Floats:
        """The waits of requests that arrived in this span."""
        arrived = self.arrived_seconds
        return self.wait_seconds[(arrived >= begin_seconds) & (arrived < end_seconds)]


def play(scenario: Scenario) -> Played:
    """Run a scenario with and without its fault, and diagnose each round's window."""
    began = time.process_time()
    simulation = scenario.simulation()
    recorder = Recorder(
        simulation,
        Scraping(
            scrape_seconds=scenario.scrape_seconds,
            fronts=scenario.fronts,
            itl_seconds=scenario.targets.itl_seconds,
        ),
        wall_offset_seconds=WALL_OFFSET_SECONDS,
        end_seconds=scenario.end_seconds,
        families=_KEPT,
        learned=learn(scenario),
    )
    # Later scrapes do not change a window.
    windows = list(recorder.rounds(ROUND_SECONDS))
    met = _waits(recorder.ended, simulation)
    usual = _twin_waits(scenario) if scenario.faults else met
    if scenario.keeps_targets:
        kept_seconds = 1.1 * float(np.quantile(usual.since(WARM_SECONDS), 0.95))
        ttft_seconds = max(scenario.targets.ttft_seconds, kept_seconds)
        scenario = replace(scenario, targets=replace(scenario.targets, ttft_seconds=ttft_seconds))
    before = time.process_time()
    rounds = _rounds(scenario, windows)
    diagnosis_seconds = time.process_time() - before
    deadline_seconds = scenario.onset_seconds + scenario.deadline_seconds + WALL_OFFSET_SECONDS
    known = [window for window in windows if window.now_seconds <= deadline_seconds]
    cost_seconds, noise_seconds = _cost(scenario, met, usual)
    least_seconds = max(_LEAST_COST * scenario.targets.ttft_seconds, noise_seconds)
    hurt_seconds = _hurt_seconds(scenario, met, usual, least_seconds)
    lasting_seconds = scenario.end_seconds - scenario.onset_seconds
    truths: list[Truth] = []
    # A fault that hurts only just before the end cannot be found by then.
    if hurt_seconds + _LEAST_HURT_SECONDS <= lasting_seconds and cost_seconds > least_seconds:
        truths = [scenario.truth]
        if scenario.second is not None:
            truths = _dearer_first(scenario, usual, least_seconds)
    return Played(
        scenario,
        truths[0] if truths else Truth(),
        cost_seconds,
        noise_seconds,
        hurt_seconds if truths else math.inf,
        rounds,
        {name: rule(known[-1]) for name, rule in PEERS.items()},
        time.process_time() - began,
        diagnosis_seconds,
        truths[1] if len(truths) > 1 else None,
    )


def _dearer_first(scenario: Scenario, usual: Waits, least_seconds: float) -> list[Truth]:
    """Those of two faults that hurt alone, the costlier first."""
    assert scenario.second is not None
    second = scenario.second
    alone = [(scenario.truth, scenario.faults), (second.truth, second.faults)]
    costs = [
        (_cost(scenario, _twin_waits(scenario, *faults), usual)[0], truth)
        for truth, faults in alone
    ]
    costs.sort(key=lambda each: each[0], reverse=True)
    return [truth for cost_seconds, truth in costs if cost_seconds > least_seconds]


def _rounds(scenario: Scenario, windows: Iterable[SeriesWindow]) -> tuple[Round, ...]:
    """The diagnosis of each window, with the state after the one before."""
    past: DiagnosisState | None = None
    rounds = []
    for window in windows:
        diagnoses, past = diagnose(window, scenario.targets, past)
        # There is one model.
        for said in diagnoses:
            findings = tuple(
                Said(f.cause, f.role, frozenset(f.engines), f.ttft_cost_seconds, f.confidence)
                for f in said.findings
            )
            t_seconds = window.now_seconds - WALL_OFFSET_SECONDS
            ranked = said.ranked_causes
            rounds.append(Round(t_seconds, said.outcome, findings, said.missing, said.text, ranked))
    return tuple(rounds)


def _twin_waits(scenario: Scenario, *faults: Fault) -> Waits:
    twin = scenario.twin(*faults)
    ended = [
        event
        for _, event in twin.events(round(scenario.end_seconds * SECOND_NS))
        if isinstance(event, RequestEnded)
    ]
    return _waits(ended, twin)


def _waits(ended: Iterable[RequestEnded], simulation: Simulation) -> Waits:
    """Waits of all requests; those without a first token, failed ones included, count until now."""
    now_ns = simulation.now_ns
    firsts = [(each.request, each.first_token_ns or now_ns) for each in ended]
    unfinished = simulation.request_flow.unfinished()
    firsts += [(request, first_ns or now_ns) for request, first_ns in unfinished]
    arrived = np.array([request.arrived_ns for request, _ in firsts], float)
    waits = np.array([first_ns - request.arrived_ns for request, first_ns in firsts], float)
    return Waits(arrived / SECOND_NS, waits / SECOND_NS)


def _cost(scenario: Scenario, met: Waits, usual: Waits) -> tuple[float, float]:
    """The increase of the mean wait, and twice the standard error of the mean without the fault."""
    begin_seconds = max(scenario.onset_seconds, WARM_SECONDS)
    faulty, clean = met.since(begin_seconds), usual.since(begin_seconds)
    if not len(faulty) or not len(clean):
        return 0.0, math.inf
    return float(faulty.mean() - clean.mean()), 2 * float(clean.std()) / math.sqrt(len(clean))


def _hurt_seconds(scenario: Scenario, met: Waits, usual: Waits, least_seconds: float) -> float:
    onset_seconds = scenario.onset_seconds
    for begin_seconds in np.arange(onset_seconds, scenario.end_seconds, 5.0):
        faulty = met.since(begin_seconds, begin_seconds + 15.0)
        clean = usual.since(begin_seconds, begin_seconds + 15.0)
        if len(faulty) and len(clean) and faulty.mean() - clean.mean() > least_seconds:
            return float(begin_seconds - onset_seconds)
    return math.inf
