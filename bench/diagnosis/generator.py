"""Draws the scenarios that the scenario file describes, each from a seed of its own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from bench.diagnosis.deployments import draw_deployment
from bench.diagnosis.kinds.drawing import Draw
from bench.diagnosis.kinds.names import KINDS
from bench.diagnosis.ranges import Ranges
from bench.diagnosis.scenario import Scenario, Truth

from disagg_cluster.planner.diagnose.verdict.values import Cause

SCENARIOS = Path(__file__).with_name("scenarios.yaml")


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """What the scenario file says; each kind with all that it does not leave to `deployment`.

    `cases` are those of the kinds that were met in the field, by their issues.
    """

    lead_seconds: float
    fault_seconds: float
    fast_share: float
    kinds: Mapping[str, Mapping[str, object]]
    cases: Mapping[str, str]

    def cause(self, kind: str) -> tuple[Cause, ...]:
        """What a kind's fault may be called; nothing where there is none."""
        told = self.kinds[kind].get("cause", [])
        return tuple(Cause(str(each)) for each in (told if isinstance(told, list) else [told]))

    def count(self, kind: str) -> int:
        """How many of a kind are played."""
        return int(str(self.kinds[kind].get("count", 1)))


@cache
def read_scenarios(path: Path = SCENARIOS) -> ScenarioFile:
    """Read the scenario file."""
    told = yaml.safe_load(path.read_text(encoding="utf-8"))
    listed = {**told["kinds"], **told["cases"]}
    kinds = {name: {**told["deployment"], **own} for name, own in listed.items()}
    unknown = {str(own.get("like", name)) for name, own in kinds.items()} - KINDS.keys()
    if unknown:
        raise SystemExit(f"{path}: no kinds of scenarios are {', '.join(sorted(unknown))}")
    return ScenarioFile(
        float(told["lead_seconds"]),
        float(told["fault_seconds"]),
        float(told["every_5_seconds"]),
        kinds,
        {name: own["issue"] for name, own in told["cases"].items()},
    )


def draw_scenario(told: ScenarioFile, kind: str, number: str) -> Scenario:
    """Draw one scenario: the same name, the same scenario."""
    name = f"{kind}-{number}"
    rng = random.Random(name)
    severity = told.kinds[kind]
    ranges = Ranges(severity, rng)
    deployment = draw_deployment(ranges, mixed=ranges.chance("mixed"))
    static = ranges.chance("static")
    onset_seconds = 0.0 if static else told.lead_seconds
    scrape_seconds = 5.0 if rng.random() < told.fast_share else 15.0
    fault_seconds = told.fault_seconds if scrape_seconds > 5 else told.fault_seconds * 2 / 3
    end_seconds = told.lead_seconds + fault_seconds
    lasting = end_seconds - onset_seconds + 1.0
    play = KINDS[str(severity.get("like", kind))](Draw(deployment, ranges, onset_seconds, lasting))
    return Scenario(
        name=name,
        kind=kind,
        seed=rng.randrange(2**31),
        cluster=play.deployment.cluster,
        load=play.load,
        lengths=play.deployment.lengths,
        targets=play.deployment.targets,
        usual_requests_per_second=play.deployment.mix.requests_per_second,
        load_ratio=play.deployment.load_ratio,
        truth=Truth(play.causes or told.cause(kind), play.engines, play.also, play.is_chance),
        faults=play.faults,
        onset_seconds=onset_seconds,
        end_seconds=end_seconds,
        scrape_seconds=scrape_seconds,
        fronts=play.deployment.fronts,
        keeps_targets=play.keeps_targets,
        second=play.second,
    )
