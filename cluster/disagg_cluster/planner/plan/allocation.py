"""Allocation of GPUs to pools that together request more than there are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from disagg_cluster.planner.plan.bounds import GpuOffer, PlanBounds, nodes_needed
from disagg_cluster.planner.plan.planned_model import PlannedModel
from disagg_exporter.model.counted import counted

EngineKind = tuple[str, int]
"""Name of the GPUs, and how many of them an engine takes."""
_FINEST = 200


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """The engines of one kind that a pool requests, and how many it keeps in any case."""

    kind: EngineKind
    desired: int
    least: int


def allocate(
    requests: Sequence[PoolRequest], taken: Mapping[EngineKind, int], bounds: PlanBounds
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Give each pool what it requests, or as equal a part of it as the bounds allow.

    Pools are filled evenly: a full prefill pool is of no use beside a decode pool that is half
    empty. Returns the engines for each request, and the bounds that bind.

    Args:
        requests: One for each pool.
        taken: Engines of others, which stay.
        bounds: GPUs and money there are.
    """
    tops = [_within(request, bounds) for request in requests]
    found = {
        _most_engines(bounds)
        for request, top in zip(requests, tops, strict=True)
        if top < request.desired
    }
    if (binding := _exceeded_bound(requests, tops, taken, bounds)) is None:
        return tuple(tops), tuple(sorted(found))
    found.add(binding)
    counts = [min(request.least, top) for request, top in zip(requests, tops, strict=True)]
    for index in _without_least(requests, counts, taken, bounds):
        counts[index] = 0
    tops = [
        _reachable_top(index, requests, counts, top, taken, bounds)
        for index, top in enumerate(tops)
    ]
    order = _fill_order(requests, counts, tops)
    least = counts

    def fits(portions: int) -> bool:
        given = _with_portions(least, order[:portions])
        return _exceeded_bound(requests, given, taken, bounds) is None

    portions = _most(0, len(order), fits)
    counts = _with_portions(least, order[:portions])
    # The remainder may be enough for smaller engines.
    stuck: set[int] = set()
    for index, engines in order[portions:]:
        if index in stuck:
            continue
        more = [*counts[:index], counts[index] + engines, *counts[index + 1 :]]
        reason = _exceeded_bound(requests, more, taken, bounds)
        if reason is None:
            counts = more
        else:
            found.add(reason)
            stuck.add(index)
    return tuple(counts), tuple(sorted(found))


def allocate_blocks(
    planned: Sequence[PlannedModel],
    taken: Mapping[EngineKind, int],
    bounds: PlanBounds,
    hold_blocks: int,
) -> dict[str, tuple[int, int]]:
    """Reduce what models were granted to the bounds, block by block.

    Further pools of a role may fill in what its first pool lacks. GPUs that one pool gives up in a
    block are available to others in the same block.

    Returns:
        For each bound that binds, the first block, and the most GPUs that it leaves short.
    """
    binding: defaultdict[str, set[int]] = defaultdict(set)
    ranks = max((len(pools) for each in planned for pools in each.roles), default=0)
    desired = [[[pool.copy() for pool in role] for role in each.granted] for each in planned]
    for rank in range(ranks):
        if rank:
            for each, of_model in zip(planned, desired, strict=True):
                each.fill_with(rank, of_model, hold_blocks)
        pools = [pair for each in planned for pair in each.pools]
        for block in range(len(pools[0][1])):
            requests = [
                PoolRequest(
                    (pool.option.gpu_name, pool.option.gpus),
                    int(counts[block]),
                    min(int(counts[block]), bounds.least_engines),
                )
                for pool, counts in pools
            ]
            given, reasons = allocate(requests, taken, bounds)
            for (_, counts), count in zip(pools, given, strict=True):
                counts[block] = count
            for reason in reasons:
                binding[reason].add(block)
    # Only now it is known what further pools filled in.
    return {
        reason: (
            min(blocks),
            max(sum(each.short_gpus(block) for each in planned) for block in blocks),
        )
        for reason, blocks in binding.items()
    }


def _within(request: PoolRequest, bounds: PlanBounds) -> int:
    most = bounds.most_engines
    return request.desired if most is None else min(request.desired, most)


def _most_engines(bounds: PlanBounds) -> str:
    return f"at most {counted(bounds.most_engines or 0, 'engine')} of a role"


def _without_least(
    requests: Sequence[PoolRequest],
    counts: list[int],
    taken: Mapping[EngineKind, int],
    bounds: PlanBounds,
) -> list[int]:
    """Pools that get not even their least where those of all do not fit: the last ones first."""
    left = list(counts)
    without = []
    for index in range(len(requests) - 1, -1, -1):
        if _exceeded_bound(requests, left, taken, bounds) is None:
            break
        left[index] = 0
        without.append(index)
    return without


def _reachable_top(
    index: int,
    requests: Sequence[PoolRequest],
    counts: Sequence[int],
    top: int,
    taken: Mapping[EngineKind, int],
    bounds: PlanBounds,
) -> int:
    """The most a pool could have if others had their least; only if portions would be coarse.

    If far more is requested than there is, not even one portion of it would fit.
    """
    if top - counts[index] <= _FINEST:
        return top

    def fits(engines: int) -> bool:
        tried = [*counts[:index], engines, *counts[index + 1 :]]
        return _exceeded_bound(requests, tried, taken, bounds) is None

    return _most(counts[index], top, fits)


def _most(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `high` that fits, by bisection; `low` is taken to fit."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _fill_order(
    requests: Sequence[PoolRequest], counts: Sequence[int], tops: Sequence[int]
) -> list[tuple[int, int]]:
    """Portions `(pool, engines)`, sorted by how full they make a pool."""
    portions = []
    for index, (request, have, top) in enumerate(zip(requests, counts, tops, strict=True)):
        if top <= have:
            continue
        cuts = np.unique(np.round(np.linspace(have, top, min(top - have, _FINEST) + 1)).astype(int))
        portions += [
            (int(upper) / request.desired, index, int(upper - lower))
            for lower, upper in pairwise(cuts)
        ]
    return [(index, engines) for _, index, engines in sorted(portions)]


def _with_portions(counts: Sequence[int], portions: Sequence[tuple[int, int]]) -> list[int]:
    given = list(counts)
    for index, engines in portions:
        given[index] += engines
    return given


def _exceeded_bound(
    requests: Sequence[PoolRequest],
    counts: Sequence[int],
    taken: Mapping[EngineKind, int],
    bounds: PlanBounds,
) -> str | None:
    """The first bound that these engines exceed.

    Where engines of others alone exceed one, only pools that add to that are limited by it.
    """
    added: Counter[EngineKind] = Counter()
    for request, count in zip(requests, counts, strict=True):
        added[request.kind] += count
    kinds = Counter(taken)
    kinds.update(added)
    by_name: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for (gpu_name, gpus), engines in kinds.items():
        by_name[gpu_name].append((gpus, engines))
    for gpu_name in {gpu_name: None for (gpu_name, _), engines in added.items() if engines}:
        offer = bounds.offer(gpu_name)
        if offer is None or not _fits(by_name[gpu_name], offer):
            return _offered(gpu_name, offer)
    budget = bounds.budget_per_hour
    if budget is None:
        return None
    left = max(0.0, budget - _money(taken, bounds))
    if _money(added, bounds) > left + budget * 1e-9:
        return f"a budget of {budget:g} an hour"
    return None


def _money(kinds: Mapping[EngineKind, int], bounds: PlanBounds) -> float:
    """Price of these engines per hour; GPUs without a price cost nothing."""
    return sum(
        (bounds.price(gpu_name) or 0.0) * gpus * engines
        for (gpu_name, gpus), engines in kinds.items()
    )


def _fits(engines: Sequence[tuple[int, int]], offer: GpuOffer) -> bool:
    nodes = offer.most_nodes
    return nodes is None or nodes_needed(engines, offer.gpus_per_node) <= nodes


def _offered(gpu_name: str, offer: GpuOffer | None) -> str:
    if offer is None:
        return f"no {gpu_name} is offered"
    whole = f" in {counted(offer.most_nodes or 0, 'node')} of {offer.gpus_per_node}"
    return f"at most {offer.most_gpus} {gpu_name}{whole if offer.gpus_per_node > 1 else ''}"
