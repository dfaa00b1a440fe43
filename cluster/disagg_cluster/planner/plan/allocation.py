"""Sharing what there is when pools want more of it than there is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from disagg_cluster.planner.plan.bounds import GpuOffer, PlanBounds, nodes_needed
from disagg_cluster.planner.plan.planned_model import PlannedModel

EngineKind = tuple[str, int]
"""GPUs of which name, and how many an engine takes."""
_FINEST = 200


@dataclass(frozen=True, slots=True)
class Wish:
    """A pool that wants so many engines of one kind, and how many it keeps in any case."""

    kind: EngineKind
    wanted: int
    least: int


def share(
    wishes: Sequence[Wish], taken: Mapping[EngineKind, int], bounds: PlanBounds
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Give each pool what it wants, or as equal a part of it as the bounds allow.

    Pools are filled alike: a prefill pool that is full helps nobody behind a decode pool that is
    half empty. Returned are engines for each wish, and the bounds that bind.

    Args:
        wishes: One for each pool.
        taken: Engines of others, which stay.
        bounds: What there is.
    """
    tops = [_within(wish, bounds) for wish in wishes]
    found = {
        _most_engines(bounds) for wish, top in zip(wishes, tops, strict=True) if top < wish.wanted
    }
    if (binding := _broken(wishes, tops, taken, bounds)) is None:
        return tuple(tops), tuple(sorted(found))
    found.add(binding)
    counts = [min(wish.least, top) for wish, top in zip(wishes, tops, strict=True)]
    for index in _least_first(wishes, counts, taken, bounds):
        counts[index] = 0
    tops = [_alone(index, wishes, counts, top, taken, bounds) for index, top in enumerate(tops)]
    order = _filling(wishes, counts, tops)
    low, high = 0, len(order)
    # The longest beginning of the order that fits.
    while low < high:
        middle = (low + high + 1) // 2
        if _broken(wishes, _given(counts, order[:middle]), taken, bounds) is None:
            low = middle
        else:
            high = middle - 1
    counts = _given(counts, order[:low])
    # What is left over may do for smaller engines.
    stuck: set[int] = set()
    for index, engines in order[low:]:
        if index in stuck:
            continue
        more = [*counts[:index], counts[index] + engines, *counts[index + 1 :]]
        reason = _broken(wishes, more, taken, bounds)
        if reason is None:
            counts = more
        else:
            found.add(reason)
            stuck.add(index)
    return tuple(counts), tuple(sorted(found))


def share_blocks(
    planned: Sequence[PlannedModel],
    taken: Mapping[EngineKind, int],
    bounds: PlanBounds,
    hold_blocks: int,
) -> dict[str, tuple[int, int]]:
    """Bring what models were granted within the bounds, block by block.

    What the first pool of a role is short of, the next ones may fill. GPUs that one pool gives up
    in a block are another's in it.

    Returns:
        For each bound that binds the first block, and the most GPUs that it leaves short.
    """
    binding: dict[str, tuple[int, int]] = {}
    ranks = max((len(pools) for each in planned for pools in each.roles), default=0)
    wanted = [[[of.copy() for of in counts] for counts in each.granted] for each in planned]
    for rank in range(ranks):
        if rank:
            for each, like in zip(planned, wanted, strict=True):
                each.fill_with(rank, like, hold_blocks)
        pools = [pair for each in planned for pair in each.pools]
        for block in range(len(pools[0][1])):
            wishes = [
                Wish(
                    (pool.option.gpu_name, pool.option.gpus),
                    int(counts[block]),
                    min(int(counts[block]), bounds.least_engines),
                )
                for pool, counts in pools
            ]
            given, reasons = share(wishes, taken, bounds)
            for (_, counts), count in zip(pools, given, strict=True):
                counts[block] = count
            short = sum(each.short_gpus(block) for each in planned)
            for reason in reasons:
                first, most = binding.get(reason, (block, 0))
                binding[reason] = (min(first, block), max(most, short) if rank else short)
    return binding


def _within(wish: Wish, bounds: PlanBounds) -> int:
    most = bounds.most_engines
    return wish.wanted if most is None else min(wish.wanted, most)


def _most_engines(bounds: PlanBounds) -> str:
    return f"at most {bounds.most_engines} engines of a role"


def _least_first(
    wishes: Sequence[Wish], counts: list[int], taken: Mapping[EngineKind, int], bounds: PlanBounds
) -> list[int]:
    """Pools that go without even their least, where not even that fits: the last ones first."""
    left = list(counts)
    without = []
    for index in range(len(wishes) - 1, -1, -1):
        if _broken(wishes, left, taken, bounds) is None:
            break
        left[index] = 0
        without.append(index)
    return without


def _alone(
    index: int,
    wishes: Sequence[Wish],
    counts: Sequence[int],
    top: int,
    taken: Mapping[EngineKind, int],
    bounds: PlanBounds,
) -> int:
    """What a pool could have if others had their least; of so many that portions would be coarse.

    Where far more is wanted than there is, not even one portion of it would fit.
    """
    low, high = counts[index], top
    if high - low <= _FINEST:
        return top
    while low < high:
        middle = (low + high + 1) // 2
        if _broken(wishes, [*counts[:index], middle, *counts[index + 1 :]], taken, bounds) is None:
            low = middle
        else:
            high = middle - 1
    return low


def _filling(
    wishes: Sequence[Wish], counts: Sequence[int], tops: Sequence[int]
) -> list[tuple[int, int]]:
    """Portions `(pool, engines)`, by how full they make a pool."""
    portions = []
    for index, (wish, have, top) in enumerate(zip(wishes, counts, tops, strict=True)):
        if top <= have:
            continue
        cuts = np.unique(np.round(np.linspace(have, top, min(top - have, _FINEST) + 1)).astype(int))
        portions += [
            (int(upper) / wish.wanted, index, int(upper - lower)) for lower, upper in pairwise(cuts)
        ]
    return [(index, engines) for _, index, engines in sorted(portions)]


def _given(counts: Sequence[int], portions: Sequence[tuple[int, int]]) -> list[int]:
    given = list(counts)
    for index, engines in portions:
        given[index] += engines
    return given


def _broken(
    wishes: Sequence[Wish],
    counts: Sequence[int],
    taken: Mapping[EngineKind, int],
    bounds: PlanBounds,
) -> str | None:
    """The first bound that these engines break."""
    kinds = Counter(taken)
    for wish, count in zip(wishes, counts, strict=True):
        kinds[wish.kind] += count
    by_name: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for (gpu_name, gpus), engines in kinds.items():
        by_name[gpu_name].append((gpus, engines))
    money = 0.0
    for gpu_name, engines_of in by_name.items():
        offer = bounds.offer(gpu_name)
        held = sum(gpus * engines for gpus, engines in engines_of)
        if held and (offer is None or not _fits(engines_of, offer)):
            return _offered(gpu_name, offer)
        if offer is not None and offer.price_per_hour is not None:
            money += held * offer.price_per_hour
    budget = bounds.budget_per_hour
    if budget is not None and money > budget * (1 + 1e-9):
        return f"a budget of {budget:g} an hour"
    return None


def _fits(engines: Sequence[tuple[int, int]], offer: GpuOffer) -> bool:
    nodes = offer.most_nodes
    return nodes is None or nodes_needed(engines, offer.gpus_per_node) <= nodes


def _offered(gpu_name: str, offer: GpuOffer | None) -> str:
    if offer is None:
        return f"no {gpu_name} is offered"
    whole = f" in {offer.most_nodes} nodes of {offer.gpus_per_node}"
    return f"at most {offer.most_gpus} {gpu_name}{whole if offer.gpus_per_node > 1 else ''}"
