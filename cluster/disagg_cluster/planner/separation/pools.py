"""The largest load that GPUs serve within the targets: as mixed engines, or as two pools."""

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
    """The capacity of an engine is not known; the message says which and why."""


@dataclass(frozen=True, slots=True)
class MixedEngines:
    """A number of equal mixed engines, the load they serve, and the limit reached first."""

    shape: EngineShape
    engines: int
    requests_per_second: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class SplitPools:
    """A number of prefill and decode engines, and the largest load that both serve.

    `limited_by` says which of the two, or the links between them, limits `requests_per_second`.
    `granularity_loss` is the share of their load that the GPUs lose because engines cannot be
    divided.
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
        """GPUs in use."""
        return self.prefill_engines * self.prefill.gpus + self.decode_engines * self.decode.gpus


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests of these lengths, to be served within these targets."""

    mix: RequestMix
    targets: Targets


def mixed_engines(costs: EngineCosts, demand: Demand, gpus: int) -> MixedEngines | None:
    """As many mixed engines as fit on the GPUs; None if not one does.

    Raises:
        NoCapacityError: Their capacity is not known.
    """
    engines = gpus // costs.shape.gpus
    if not engines:
        return None
    pool = _known("mixed", costs, mixed_capacity(costs, demand.mix, demand.targets, engines))
    return MixedEngines(costs.shape, engines, pool.requests_per_second, pool.bound)


class PoolPair:
    """Prefill engines of one kind beside decode engines of one kind.

    Args:
        prefill: Step times of each prefill engine.
        decode: Step times of each decode engine.
        demand: The requests and their targets.
        link: The link between any two engines.

    Raises:
        NoCapacityError: Step times of one of the two are not known.
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
        """The split of the GPUs with the largest load; None if no two engines fit.

        With more prefill engines, prefill serves more and decode less, and links carry most if both
        are equal in number. The minimum of three functions that rise and then fall does so, too, so
        a hill climb with shrinking steps finds its maximum.

        Raises:
            NoCapacityError: The capacity of one of the two is not known.
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
            neighbours = (best.prefill_engines - step, best.prefill_engines + step)
            tried = [split(count) for count in neighbours if 1 <= count <= most]
            better = max(tried, key=_rank, default=best)
            if _rank(better) > _rank(best):
                best = better
            else:
                step //= 2
        return best

    def of(self, prefill_engines: int, decode_engines: int) -> SplitPools:
        """The load that these numbers of engines serve.

        Raises:
            NoCapacityError: The capacity of one of the two is not known.
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
        """Share of the load lost against GPUs that could be divided between the phases at will."""
        sizes = (self._prefill.shape.gpus, self._decode.shape.gpus)
        gpus = [pool[1] * each for pool, each in zip((prefill, decode), sizes, strict=True)]
        if not load:
            return 0.0
        gpus_per_request = [
            size / pool.requests_per_second
            for size, (pool, _) in zip(gpus, (prefill, decode), strict=True)
        ]
        divided = sum(gpus) / sum(gpus_per_request)
        return max(0.0, 1 - load / divided)

    def _decode_capacity(self, engines: int) -> PoolCapacity:
        if engines not in self._decoding:
            mix, targets = self._demand.mix, self._demand.targets
            found = decode_capacity(self._decode, mix, targets, engines)
            self._decoding[engines] = _known("decode", self._decode, found)
        return self._decoding[engines]


def _rank(split: SplitPools) -> tuple[float, int]:
    """Its load; among equal loads fewer prefill engines, which lead towards the better split."""
    return split.requests_per_second, -split.prefill_engines


def _known(
    role: str, costs: EngineCosts, capacity: PoolCapacity | UndecidedCapacity
) -> PoolCapacity:
    if isinstance(capacity, UndecidedCapacity):
        raise _not_known(role, costs, capacity.reason)
    return capacity


def _not_known(role: str, costs: EngineCosts, why: str) -> NoCapacityError:
    shape = costs.shape
    kind = f"{role} engines of {shape.gpus} x {shape.gpu_name}"
    return NoCapacityError(f"the capacity of {kind}: {why}")
