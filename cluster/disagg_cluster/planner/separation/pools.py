"""The largest load that GPUs take at the targets: as mixed engines, or as two pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from disagg_cluster.planner.capacity.decode_pool import decode_capacity, decode_pool
from disagg_cluster.planner.capacity.engine_costs import EngineCosts, UnseenStepError
from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.planner.capacity.mixed_pool import mixed_capacity
from disagg_cluster.planner.capacity.pool_capacity import (
    Bound,
    PoolCapacity,
    UndecidedCapacity,
)
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.separation.kv_link import KvLink
from disagg_cluster.planner.separation.prompt_path import PromptPath
from disagg_exporter.errors import DisaggError

_NEAR = 2e-3


class NoCapacityError(DisaggError):
    """It is not known what some engine can take; says which and why."""


@dataclass(frozen=True, slots=True)
class MixedEngines:
    """So many equal mixed engines, what they take, and what gives out first."""

    shape: EngineShape
    engines: int
    requests_per_second: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class SplitPools:
    """So many prefill and decode engines, and the largest load that both of them take.

    `limited_by` says which of the two, or the links between them, takes no more than
    `requests_per_second`. `granularity_loss` is the share of what the same GPUs would take if
    engines could be divided.
    """

    prefill: EngineShape
    prefill_engines: int
    decode: EngineShape
    decode_engines: int
    requests_per_second: float
    limited_by: Literal["prefill", "decode", "link"]
    bound: Bound | Literal["link"]
    transfer_seconds: float
    granularity_loss: float

    @property
    def gpus(self) -> int:
        """Those in use."""
        return self.prefill_engines * self.prefill.gpus + self.decode_engines * self.decode.gpus


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of engines: requests of these lengths, within these targets."""

    mix: RequestMix
    targets: Targets


def mixed_engines(costs: EngineCosts, demand: Demand, gpus: int) -> MixedEngines | None:
    """As many mixed engines as fit on so many GPUs; None where not one does.

    Raises:
        NoCapacityError: It is not known what they take.
    """
    engines = gpus // costs.shape.gpus
    if not engines:
        return None
    pool = _known("mixed", costs, mixed_capacity(costs, demand.mix, demand.targets, engines))
    return MixedEngines(costs.shape, engines, pool.requests_per_second, pool.bound)


class PoolPair:
    """Prefill engines of one kind beside decode engines of one kind.

    Args:
        prefill: Of each prefill engine.
        decode: Of each decode engine.
        demand: The requests and their targets.
        link: Between any two of them.

    Raises:
        NoCapacityError: It is not known what steps of one of the two take.
    """

    def __init__(
        self, prefill: EngineCosts, decode: EngineCosts, demand: Demand, link: KvLink
    ) -> None:
        self._prefill = prefill
        self._decode = decode
        self._demand = demand
        self._decoding: dict[int, PoolCapacity] = {}
        try:
            decoding = decode_pool(decode, demand.mix, demand.targets)
        except UnseenStepError as error:
            raise _not_known("decode", decode, str(error)) from error
        try:
            self._path = PromptPath(prefill, decoding, link)
        except UnseenStepError as error:
            raise _not_known("prefill", prefill, str(error)) from error

    def best(self, gpus: int) -> SplitPools | None:
        """The split of so many GPUs that takes the most; None where no two engines fit.

        More prefill engines take more and leave less for decode, and links carry most where both
        are alike many. The least of three that rise and then fall does so, too: it is climbed in
        steps that become smaller.

        Raises:
            NoCapacityError: It is not known what one of the two takes.
        """
        each, other = self._prefill.shape.gpus, self._decode.shape.gpus
        most = (gpus - other) // each
        if most < 1:
            return None

        def split(count: int) -> SplitPools:
            return self.of(count, (gpus - count * each) // other)

        best = split((most + 1) // 2)
        step = (most + 3) // 4
        while step:
            beside = (best.prefill_engines - step, best.prefill_engines + step)
            tried = [split(count) for count in beside if 1 <= count <= most]
            better = max(tried, key=_merit, default=best)
            if _merit(better) > _merit(best):
                best = better
            else:
                step //= 2
        return best

    def of(self, prefill_engines: int, decode_engines: int) -> SplitPools:
        """What so many engines of each take.

        Raises:
            NoCapacityError: It is not known what one of the two takes.
        """
        engines = prefill_engines, decode_engines
        decode = self._decode_capacity(decode_engines)
        prefill = self._path.capacity(engines, decode.batch)
        pools = min(prefill.requests_per_second, decode.requests_per_second)
        load = self._path.largest_load(pools, engines, decode.batch) if pools else 0.0
        limited_by: Literal["prefill", "decode", "link"] = "link"
        bound: Bound | Literal["link"] = "link"
        if load >= pools * (1 - _NEAR):
            less = prefill.requests_per_second <= decode.requests_per_second
            limited_by, bound = ("prefill", prefill.bound) if less else ("decode", decode.bound)
        return SplitPools(
            prefill=self._prefill.shape,
            prefill_engines=prefill_engines,
            decode=self._decode.shape,
            decode_engines=decode_engines,
            requests_per_second=load,
            limited_by=limited_by,
            bound=bound,
            transfer_seconds=self._path.transfers.seconds,
            granularity_loss=self._granularity_loss(
                load, (prefill, prefill_engines), (decode, decode_engines)
            ),
        )

    def _granularity_loss(
        self, load: float, prefill: tuple[PoolCapacity, int], decode: tuple[PoolCapacity, int]
    ) -> float:
        """What GPUs that could change sides one by one, to the part, would take more."""
        gpus = [pool[1] * each for pool, each in zip((prefill, decode), self._each(), strict=True)]
        if not load:
            return 0.0
        of_one = [
            size / pool.requests_per_second
            for size, (pool, _) in zip(gpus, (prefill, decode), strict=True)
        ]
        divided = sum(gpus) / sum(of_one)
        return max(0.0, 1 - load / divided)

    def _each(self) -> tuple[int, int]:
        return self._prefill.shape.gpus, self._decode.shape.gpus

    def _decode_capacity(self, engines: int) -> PoolCapacity:
        if engines not in self._decoding:
            mix, targets = self._demand.mix, self._demand.targets
            told = decode_capacity(self._decode, mix, targets, engines)
            self._decoding[engines] = _known("decode", self._decode, told)
        return self._decoding[engines]


def _merit(split: SplitPools) -> tuple[float, int]:
    """Its load; of several with the same decode pool, fewer prefill engines lead to the better."""
    return split.requests_per_second, -split.prefill_engines


def _known(
    role: str, costs: EngineCosts, capacity: PoolCapacity | UndecidedCapacity
) -> PoolCapacity:
    if isinstance(capacity, UndecidedCapacity):
        raise _not_known(role, costs, capacity.reason)
    return capacity


def _not_known(role: str, costs: EngineCosts, why: str) -> NoCapacityError:
    shape = costs.shape
    return NoCapacityError(f"what {role} engines of {shape.gpus} x {shape.gpu_name} take: {why}")
