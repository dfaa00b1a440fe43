"""The kinds of scenarios: how each is made of a deployment and of what the scenario file says."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from bench.diagnosis.deployments import Deployment

from disagg_cluster.planner.diagnose.verdict.values import EngineKey
from disagg_cluster.simulator.cluster.spec import EngineSpec
from disagg_cluster.simulator.engine.roofline import Noise
from disagg_cluster.simulator.engine_faults import Slow
from disagg_cluster.simulator.fault import Fault
from disagg_cluster.simulator.gpu_faults import Throttled
from disagg_cluster.simulator.load import Constant, LoadOverTime, Shifting, Trace
from disagg_cluster.simulator.load_faults import Skewed, Surge
from disagg_cluster.simulator.network_faults import SlowTransfer
from disagg_exporter.model import Throttle


@dataclass(frozen=True, slots=True)
class Play:
    """What becomes of a deployment: load, faults, and the engines that these are brought upon."""

    deployment: Deployment
    load: LoadOverTime
    faults: tuple[Fault, ...] = ()
    engines: frozenset[EngineKey] = frozenset()


@dataclass(frozen=True, slots=True)
class Draw:
    """What a kind draws from: its deployment, what the file says of it, and when its fault is.

    `at` begins each fault: the onset, and for how long.
    """

    deployment: Deployment
    severity: Mapping[str, object]
    rng: random.Random
    onset_seconds: float
    fault_seconds: float

    def between(self, name: str) -> float:
        """A number from a range of the file."""
        told = self.severity[name]
        assert isinstance(told, list)
        return self.rng.uniform(float(told[0]), float(told[1]))

    @property
    def at(self) -> tuple[float, float]:
        """When a fault begins, and for how long."""
        return self.onset_seconds, self.fault_seconds

    def entry(self) -> EngineSpec:
        """One of the engines that read prompts."""
        return self.rng.choice(self.deployment.entries())

    def well(self, load: LoadOverTime | None = None) -> Play:
        """Nothing goes wrong."""
        return Play(self.deployment, load or Constant(self.deployment.mix))

    def ill(self, *faults: Fault, engines: tuple[EngineSpec, ...] = ()) -> Play:
        """Faults under a constant load."""
        return replace(self.well(), faults=faults, engines=keys(engines))


def keys(engines: tuple[EngineSpec, ...]) -> frozenset[EngineKey]:
    """What a diagnosis calls engines."""
    return frozenset(EngineKey(engine.node, engine.name) for engine in engines)


def _steady(draw: Draw) -> Play:
    return draw.well()


def _changing(draw: Draw) -> Play:
    mix, swing = draw.deployment.mix, draw.between("swing")
    high, low = (
        replace(mix, requests_per_second=mix.requests_per_second * factor)
        for factor in (1 + swing, 1 - swing)
    )
    return draw.well(Shifting(high, low, draw.between("period_seconds")))


def _bursts(draw: Draw) -> Play:
    mix, seconds = draw.deployment.mix, draw.between("burst_seconds")
    factor = draw.between("burst")
    burst = replace(mix, requests_per_second=mix.requests_per_second * factor)
    # Between bursts, one in eight steps, it is calmer, so that the mean stays.
    calm = replace(mix, requests_per_second=mix.requests_per_second * max(0.3, (8 - factor) / 7))
    steps = [burst if draw.rng.random() < 1 / 8 else calm for _ in range(200)]
    return draw.well(Trace(seconds, tuple(steps)))


def _noisy(draw: Draw) -> Play:
    noise = Noise(draw.between("step_noise"), draw.between("drift"), draw.rng.uniform(120, 900))
    engines = [replace(each, noise=noise) for each in draw.deployment.cluster.engines]
    return replace(draw, deployment=draw.deployment.with_engines(engines)).well()


def _favoured(draw: Draw) -> Play:
    engine = draw.entry()
    return draw.ill(Skewed(*draw.at, {engine.name: draw.between("weight")}), engines=(engine,))


def _throttled(draw: Draw, reason: Throttle = Throttle.THERMAL) -> Play:
    engine, clock_ratio = draw.entry(), draw.between("clock")
    faults = (Throttled(*draw.at, gpu, clock_ratio, reason) for gpu in engine.gpus)
    return draw.ill(*faults, engines=(engine,))


def _power_capped(draw: Draw) -> Play:
    return _throttled(draw, Throttle.POWER_CAP)


def _sick(draw: Draw) -> Play:
    engine = draw.entry()
    return draw.ill(Slow(*draw.at, engine.name, draw.between("factor")), engines=(engine,))


def _slow_link(draw: Draw, engine: EngineSpec | None = None) -> Play:
    """The mean prompt then takes so many seconds."""
    deployment, link = draw.deployment, draw.deployment.cluster.link
    kv_bytes = deployment.cluster.engines[0].model.kv_bytes_per_token
    usual = link.latency_seconds + deployment.mix.prompt_tokens * kv_bytes / link.bytes_per_second
    # What an engine can send in time bounds how slow its link may be, or nothing gets through.
    engines = len(deployment.entries()) if engine is None else len(deployment.of(engine.role))
    most_seconds = 0.8 * engines / deployment.mix.requests_per_second
    seconds = min(draw.between("transfer_seconds"), most_seconds)
    name = None if engine is None else engine.name
    return draw.ill(
        SlowTransfer(*draw.at, max(1.0, seconds / usual), name),
        engines=() if engine is None else (engine,),
    )


def _one_slow_link(draw: Draw) -> Play:
    return _slow_link(draw, draw.rng.choice(draw.deployment.cluster.engines))


def _surge(draw: Draw) -> Play:
    """`over` is the load that it leads to, over what the pool can read."""
    return draw.ill(Surge(*draw.at, draw.between("over") / draw.deployment.load_ratio))


KINDS: Mapping[str, Callable[[Draw], Play]] = {
    "steady": _steady,
    "steady_mixed": _steady,
    "low_traffic": _steady,
    "nearly_full": _steady,
    "changing": _changing,
    "bursts": _bursts,
    "wide_lengths": _steady,
    "noisy_steps": _noisy,
    "uneven": _favoured,
    "throttled": _throttled,
    "power_capped": _power_capped,
    "sick": _sick,
    "favoured": _favoured,
    "slow_link": _one_slow_link,
    "slow_links": _slow_link,
    "surge": _surge,
}
"""By name in the scenario file."""
