"""The largest loads of simulated engines at the targets, mixed and separate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.separation.loads import LoadCase

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.separation.engines import Engines
from disagg_cluster.planner.separation.separation import separation
from disagg_cluster.planner.separation.verdict import SeparationVerdict, UndecidedSeparation
from disagg_cluster.simulator.cluster.event_queue import RequestEnded
from disagg_cluster.simulator.cluster.network import LinkSpec, Policy
from disagg_cluster.simulator.cluster.spec import ClusterSpec, EngineSpec, Reporting
from disagg_cluster.simulator.load import Constant, Lengths, Mix
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.model import SECOND_NS, Role

_QUIET = Reporting(
    single_steps=False, heartbeat_seconds=None, page_seconds=None, sweep_seconds=None
)
_FINER = 3
_WIDEN = 1.15
_LEAST_OF_GUESS = 0.1
_WARM_STAYS, _GRACE_STAYS = 1.5, 6.0

Roles = tuple[tuple[Role, int], ...]
"""Roles with their numbers of engines."""


@dataclass(frozen=True, slots=True)
class SimulatedGain:
    """The verdict on a load, and the loads found by simulation."""

    case: LoadCase
    verdict: SeparationVerdict
    mixed_requests_per_second: float
    split_requests_per_second: float

    @property
    def gain(self) -> float:
        """The simulated gain."""
        return self.split_requests_per_second / self.mixed_requests_per_second

    @property
    def error(self) -> float:
        """The relative error of the predicted gain; 0 if neither is a gain at all."""
        if not self.gain:
            return 0.0 if not self.verdict.gain.ratio else math.inf
        return self.verdict.gain.ratio / self.gain - 1


def simulated_gain(case: LoadCase, requests: int, seeds: int) -> SimulatedGain | None:
    """Compare the verdict on a load with simulation; None where there is no verdict.

    The truth is the largest simulated load of the advised split and its neighbours.
    """
    costs = (case.costs,)
    verdict = separation(Engines(costs, costs, costs), case.mix, case.targets, case.gpus, case.link)
    if isinstance(verdict, UndecidedSeparation) or not verdict.mixed.requests_per_second:
        return None
    trial = _Trial(case, requests, seeds)
    mixed = trial.largest_load(((Role.MIXED, case.engines),), verdict.mixed.requests_per_second)
    if not mixed:
        return None
    guess = verdict.split.requests_per_second or mixed * _LEAST_OF_GUESS
    advised = verdict.split.prefill_engines
    best = 0.0
    for prefill in (advised, advised - 1, advised + 1):
        decode = case.engines - prefill
        if min(prefill, decode) < 1:
            continue
        roles = ((Role.PREFILL, prefill), (Role.DECODE, decode))
        if best and not trial.holds(roles, best * _WIDEN ** (1 / 2**_FINER)):
            continue
        best = max(best, trial.largest_load(roles, best or guess))
    return SimulatedGain(case, verdict, mixed, best)


@dataclass(frozen=True, slots=True)
class _Trial:
    case: LoadCase
    requests: int
    seeds: int

    def largest_load(self, roles: Roles, guess: float) -> float:
        """Return the most requests a second at which both targets hold, by bisection from a guess.

        0 if they do not hold at a tenth of the guess.
        """
        low = high = guess
        if self.holds(roles, guess):
            while self.holds(roles, high := high * _WIDEN):
                low = high
        else:
            while not self.holds(roles, low := low / _WIDEN):
                high = low
                if low < guess * _LEAST_OF_GUESS:
                    return 0.0
        for _ in range(_FINER):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.holds(roles, middle) else (low, middle)
        return math.sqrt(low * high)

    def holds(self, roles: Roles, requests_per_second: float) -> bool:
        """Return whether enough requests are within each target, over all seeds."""
        shares = [self._shares(roles, requests_per_second, seed) for seed in range(self.seeds)]
        targets = zip(*shares, strict=True)
        return min(sum(each) / self.seeds for each in targets) >= self.case.targets.attainment

    def _shares(self, roles: Roles, requests_per_second: float, seed: int) -> tuple[float, float]:
        """Return the shares of requests within the TTFT and within the ITL target."""
        case, mix, targets = self.case, self.case.mix, self.case.targets
        simulation = Simulation(
            ClusterSpec(
                _engines(case, roles),
                link=LinkSpec(case.link.bytes_per_second, case.link.latency_seconds),
                policy=Policy.LEAST_LOADED,
                hop_seconds=0.0,
            ),
            Constant(Mix(requests_per_second, mix.prompt_tokens, mix.output_tokens)),
            lengths=Lengths(
                prompt_spread=math.sqrt(math.log1p(mix.prompt_dispersion)),
                output_spread=math.sqrt(math.log1p(mix.output_dispersion)),
            ),
            reporting=_QUIET,
            seed=seed,
        )
        stay_seconds = targets.ttft_seconds + mix.output_tokens * targets.itl_seconds
        first_ns = round(_WARM_STAYS * stay_seconds * SECOND_NS)
        last_ns = first_ns + round(self.requests / requests_per_second * SECOND_NS)
        # Long outputs take many times the mean; a request that has not ended by then is late.
        end_ns = last_ns + round(_GRACE_STAYS * stay_seconds * SECOND_NS)
        outcome = _Outcome(targets)
        for _, event in simulation.events(end_ns):
            if not isinstance(event, RequestEnded):
                continue
            if first_ns <= event.request.arrived_ns < last_ns:
                outcome.count(event)
            elif event.request.arrived_ns >= last_ns:
                outcome.after = min(outcome.after, event.request.number)
            else:
                outcome.before = max(outcome.before, event.request.number)
            if outcome.complete or outcome.surely_late(self.requests):
                break
        return outcome.shares(self.requests)


@dataclass(slots=True)
class _Outcome:
    """The outcome of the requests that count: those numbered between `before` and `after`."""

    targets: Targets
    ended: int = 0
    before: int = 0
    after: float = math.inf
    late_prompts: int = 0
    late_tokens: int = 0

    def count(self, event: RequestEnded) -> None:
        """Count one request."""
        request, targets = event.request, self.targets
        self.ended += 1
        if event.failed or event.first_token_ns is None:
            self.late_prompts += 1
            self.late_tokens += 1
            return
        ttft_ns = event.first_token_ns - request.arrived_ns
        itl_ns = (event.ended_ns - event.first_token_ns) / max(1, request.output_tokens - 1)
        self.late_prompts += ttft_ns > targets.ttft_seconds * SECOND_NS
        self.late_tokens += itl_ns > targets.itl_seconds * SECOND_NS

    @property
    def complete(self) -> bool:
        """Whether all have ended: as many as there are numbers between `before` and `after`."""
        return self.ended >= self.after - self.before - 1

    def surely_late(self, requests: int) -> bool:
        """Return whether enough were late to miss the targets, even if no other is."""
        most = 2 * requests * (1 - self.targets.attainment)
        return max(self.late_prompts, self.late_tokens) > most

    def shares(self, requests: int) -> tuple[float, float]:
        """Return the shares within the TTFT and the ITL target; unfinished requests in neither."""
        count = self.ended if self.complete else max(self.ended, requests)
        return tuple((self.ended - late) / count for late in (self.late_prompts, self.late_tokens))  # type: ignore[return-value] # two


def _engines(case: LoadCase, roles: Roles) -> tuple[EngineSpec, ...]:
    return tuple(
        EngineSpec(
            f"{role}-{number}",
            role,
            tuple(f"{role}-{number}-{gpu}" for gpu in range(case.gpus_each)),
            gpu=case.gpu,
            model=case.model,
            prefix_caching=False,
        )
        for role, count in roles
        for number in range(count)
    )
