"""Draws the scenarios that the scenario file describes, each from its own seed."""

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
    """The scenario file; each kind is completed with the defaults of `deployment`.

    `cases` maps the kinds that were met in the field to their issues.
    """

    lead_seconds: float
    fault_seconds: float
    fast_share: float
    kinds: Mapping[str, Mapping[str, object]]
    cases: Mapping[str, str]

    def cause(self, kind: str) -> tuple[Cause, ...]:
        """The accepted causes of a kind's fault; empty without one."""
        cause = self.kinds[kind].get("cause", [])
        return tuple(Cause(str(each)) for each in (cause if isinstance(cause, list) else [cause]))

    def count(self, kind: str) -> int:
        """Number of scenarios of a kind."""
        return int(str(self.kinds[kind].get("count", 1)))


@cache
def read_scenarios(path: Path = SCENARIOS) -> ScenarioFile:
    """Read the scenario file."""
    content = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    listed = {**content["kinds"], **content["cases"]}
    kinds = {name: {**content["deployment"], **own} for name, own in listed.items()}
    unknown = {str(own.get("like", name)) for name, own in kinds.items()} - KINDS.keys()
    if unknown:
        raise SystemExit(f"{path}: no kinds of scenarios are {', '.join(sorted(unknown))}")
    return ScenarioFile(
        float(content["lead_seconds"]),
        float(content["fault_seconds"]),
        float(content["every_5_seconds"]),
        kinds,
        {name: own["issue"] for name, own in content["cases"].items()},
    )


def draw_scenario(scenarios: ScenarioFile, kind: str, number: str) -> Scenario:
    """Draw one scenario; the name determines it."""
    name = f"{kind}-{number}"
    rng = random.Random(name)
    severity = scenarios.kinds[kind]
    ranges = Ranges(severity, rng)
    deployment = draw_deployment(ranges, mixed=ranges.chance("mixed"))
    static = ranges.chance("static")
    onset_seconds = 0.0 if static else scenarios.lead_seconds
    scrape_seconds = 5.0 if rng.random() < scenarios.fast_share else 15.0
    fault_seconds = (
        scenarios.fault_seconds if scrape_seconds > 5 else scenarios.fault_seconds * 2 / 3
    )
    end_seconds = scenarios.lead_seconds + fault_seconds
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
        truth=Truth(play.causes or scenarios.cause(kind), play.engines, play.also, play.is_chance),
        faults=play.faults,
        onset_seconds=onset_seconds,
        end_seconds=end_seconds,
        scrape_seconds=scrape_seconds,
        fronts=play.deployment.fronts,
        keeps_targets=play.keeps_targets,
        second=play.second,
    )
