"""The largest load at which a simulated pool serves the required share within a target."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.simulator.cluster.event_queue import RequestEnded
from disagg_cluster.simulator.cluster.network import LinkSpec, Policy
from disagg_cluster.simulator.cluster.spec import ClusterSpec, EngineSpec, Reporting
from disagg_cluster.simulator.engine.hardware import Gpu, Model
from disagg_cluster.simulator.engine.roofline import BatchWork, Price
from disagg_cluster.simulator.load import Constant, Lengths, LoadOverTime, Mix, Trace
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.model import SECOND_NS, Role

_QUIET = Reporting(
    single_steps=False, heartbeat_seconds=None, page_seconds=None, sweep_seconds=None
)
_STRIDE = 1.15
_ROUNDS = 3
_FAST = LinkSpec(bytes_per_second=1e15, latency_seconds=0.0)


@dataclass(frozen=True, slots=True)
class PoolCase:
    """A pool of one role, its load and its targets."""

    name: str
    role: Role
    gpu: Gpu
    model: Model
    gpus: int
    engines: int
    mix: RequestMix
    targets: Targets
    requests: int
    policy: Policy = Policy.LEAST_LOADED


def within_share(case: PoolCase, requests_per_second: float, seed: int) -> float:
    """Return the share of a simulated load's requests within the targets of the role."""
    mix = case.mix.with_load(requests_per_second)
    simulation = Simulation(
        ClusterSpec(_engines(case), link=_FAST, policy=case.policy, hop_seconds=0.0),
        _load(mix, seed, case.requests / requests_per_second),
        lengths=_lengths(mix),
        reporting=_QUIET,
        seed=seed,
    )
    warm_seconds = _warm_seconds(case, requests_per_second)
    span_seconds = warm_seconds + case.requests / requests_per_second
    # A request that has not ended long after its time is late.
    grace_seconds = warm_seconds + 3 * case.targets.ttft_seconds
    ended = within = 0
    first_ns, last_ns = round(warm_seconds * SECOND_NS), round(span_seconds * SECOND_NS)
    for _, event in simulation.events(round((span_seconds + grace_seconds) * SECOND_NS)):
        if isinstance(event, RequestEnded) and first_ns <= event.request.arrived_ns < last_ns:
            ended += 1
            within += _within(case, event)
    return within / max(1, ended)


def largest_load(case: PoolCase, guess: float, seeds: int = 4) -> float:
    """Return the most requests a second at which the share holds, by bisection around a guess.

    The share is the mean over `seeds` seeds, the same at each load.
    """

    def holds(rate: float) -> bool:
        shares = [within_share(case, rate, seed) for seed in range(seeds)]
        return sum(shares) / seeds >= case.targets.attainment

    low, high = guess, guess
    if holds(guess):
        while holds(high := high * _STRIDE):
            low = high
    else:
        while not holds(low := low / _STRIDE):
            high = low
    for _ in range(_ROUNDS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return math.sqrt(low * high)


class _Instant:
    """An engine whose steps take next to nothing."""

    def price(self, work: BatchWork) -> Price:
        """Return a microsecond."""
        return Price(1e-6)


QUICK_STEPS = _Instant()
"""The costs of engines that are not under test."""


def _engines(case: PoolCase) -> tuple[EngineSpec, ...]:
    def engine(number: int, role: Role, *, measured: bool) -> EngineSpec:
        spec = EngineSpec(
            f"{role}-{number}",
            role,
            tuple(f"{role}-{number}-{gpu}" for gpu in range(case.gpus)),
            gpu=case.gpu,
            model=case.model,
            prefix_caching=False,
        )
        if measured:
            return spec
        return replace(
            spec, costs=QUICK_STEPS, gap_seconds=0.0, kv_tokens=10**8, running_requests=10**6
        )

    measured = [engine(n, case.role, measured=True) for n in range(case.engines)]
    if case.role is Role.MIXED:
        return tuple(measured)
    other = Role.DECODE if case.role is Role.PREFILL else Role.PREFILL
    return (*measured, *(engine(n, other, measured=False) for n in range(4)))


def _load(mix: RequestMix, seed: int, seconds: float) -> LoadOverTime:
    """Return Poisson arrivals; if more dispersed, Poisson with a rate drawn anew each second.

    The variance over the mean of the arrivals in a second is then 1 + mean · v, where v is the
    squared coefficient of variation of the rates.
    """
    rate = mix.requests_per_second
    if mix.arrival_dispersion <= 1:
        return Constant(Mix(rate, mix.prompt_tokens, mix.output_tokens))
    shape = rate / (mix.arrival_dispersion - 1)
    rng = random.Random(f"{seed} rates")
    rates = [rng.gammavariate(shape, rate / shape) for _ in range(math.ceil(3 * seconds) + 600)]
    mixes = tuple(Mix(each, mix.prompt_tokens, mix.output_tokens) for each in rates)
    return Trace(1.0, mixes).scaled(rate)


def _lengths(mix: RequestMix) -> Lengths:
    return Lengths(
        prompt_spread=math.sqrt(math.log1p(mix.prompt_dispersion)),
        output_spread=math.sqrt(math.log1p(mix.output_dispersion)),
    )


def _warm_seconds(case: PoolCase, requests_per_second: float) -> float:
    if case.role is Role.PREFILL:
        return max(20 * case.targets.ttft_seconds, 100 / requests_per_second)
    return 3 * case.mix.output_tokens * case.targets.itl_seconds + case.targets.ttft_seconds


def _within(case: PoolCase, event: RequestEnded) -> bool:
    if event.failed or event.first_token_ns is None:
        return False
    ttft_seconds = (event.first_token_ns - event.request.arrived_ns) / SECOND_NS
    gaps = max(1, event.request.output_tokens - 1)
    itl_seconds = (event.ended_ns - event.first_token_ns) / SECOND_NS / gaps
    return ttft_seconds <= case.targets.ttft_seconds and itl_seconds <= case.targets.itl_seconds
