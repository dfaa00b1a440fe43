"""The input and the result of a kind of scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from bench.diagnosis.deployments import Deployment
from bench.diagnosis.occupancy import writers_at_once
from bench.diagnosis.ranges import Ranges
from bench.diagnosis.scenario import SecondFault

from disagg_cluster.planner.diagnose.verdict.values import Cause, EngineKey
from disagg_cluster.simulator.cluster.spec import EngineSpec
from disagg_cluster.simulator.fault import Fault
from disagg_cluster.simulator.load import Constant, LoadOverTime
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class Play:
    """A deployment with its load, its faults, and the engines that they affect.

    `also` and `is_chance` are as in `Truth`, `keeps_targets` and `second` as in `Scenario`;
    `causes` are those of the scenario file unless a kind draws them.
    """

    deployment: Deployment
    load: LoadOverTime
    faults: tuple[Fault, ...] = ()
    engines: frozenset[EngineKey] = frozenset()
    also: tuple[frozenset[EngineKey], ...] = ()
    is_chance: bool = False
    causes: tuple[Cause, ...] = ()
    keeps_targets: bool = True
    second: SecondFault | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """A deployment, the parameters of a kind, and the time of its fault."""

    deployment: Deployment
    ranges: Ranges
    onset_seconds: float
    fault_seconds: float

    @property
    def at(self) -> tuple[float, float]:
        """When a fault begins, and how long it lasts."""
        return self.onset_seconds, self.fault_seconds

    def entry(self) -> EngineSpec:
        """One of the engines that compute prompts."""
        return self.ranges.rng.choice(self.deployment.entries())

    def entry_or_all(self) -> tuple[EngineSpec, ...]:
        """One of those with the probability `one` of the file, else all."""
        return (self.entry(),) if self.ranges.chance("one") else tuple(self.deployment.entries())

    def decodes(self) -> list[EngineSpec]:
        """The decode engines."""
        return self.deployment.of(Role.DECODE)

    def writers(self) -> float:
        """Number of concurrent decode requests on one of the engines that decode."""
        deployment, mix = self.deployment, self.deployment.mix
        is_mixed = deployment.entry_role is Role.MIXED
        engines = len(deployment.entries() if is_mixed else self.decodes())
        tokens_per_second = mix.requests_per_second * mix.output_tokens / engines
        context = mix.prompt_tokens + mix.output_tokens / 2
        reading = deployment.load_ratio if is_mixed else 0.0
        return writers_at_once(deployment.costs, tokens_per_second, context, reading)

    def clean(self, load: LoadOverTime | None = None) -> Play:
        """No fault."""
        return Play(self.deployment, load or Constant(self.deployment.mix))

    def faulty(self, faults: Iterable[Fault], engines: Iterable[EngineSpec] = ()) -> Play:
        """Faults under a constant load."""
        return replace(self.clean(), faults=tuple(faults), engines=keys_of(engines))


def keys_of(engines: Iterable[EngineSpec]) -> frozenset[EngineKey]:
    """The keys of engines in a diagnosis."""
    return frozenset(EngineKey(engine.node, engine.name) for engine in engines)


def kv_tokens(engine: EngineSpec) -> int:
    """Return the tokens that an engine's cache holds."""
    limits = engine.limits()
    return limits.kv_blocks * limits.block_tokens


Kind = Callable[[Draw], Play]
