"""What a plan may use: GPUs by name, in whole nodes, with their price; engines; money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from disagg_exporter.errors import DisaggError


class PlanBoundsError(DisaggError):
    """Bounds that no plan can keep; the message lists all problems."""


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """GPUs of one name that are available.

    `most_gpus` is their number (None: unlimited); price per hour and idle power are those of one,
    where known. An engine lies within a node of `gpus_per_node`, or takes whole nodes.
    """

    gpu_name: str
    most_gpus: int | None = None
    gpus_per_node: int = 8
    price_per_hour: float | None = None
    idle_watts: float | None = None

    @property
    def most_nodes(self) -> int | None:
        """Whole nodes; GPUs of a partial node do not count."""
        return None if self.most_gpus is None else self.most_gpus // self.gpus_per_node


@dataclass(frozen=True, slots=True)
class PlanBounds:
    """The bounds of a plan.

    Each role of each model keeps `least_engines` at any load, and has at most `most_engines`.
    `budget_per_hour` is for all GPUs of the offers together, and requires their prices. `unlisted`
    are running GPUs without an offer: they have no price and do not count towards it.

    Raises:
        PlanBoundsError: They contradict each other.
    """

    offers: tuple[GpuOffer, ...]
    least_engines: int = 1
    most_engines: int | None = None
    budget_per_hour: float | None = None
    unlisted: tuple[GpuOffer, ...] = ()

    def __post_init__(self) -> None:
        problems = [
            f"{name} is offered {count} times"
            for name, count in Counter(offer.gpu_name for offer in self.offers).items()
            if count > 1
        ]
        for offer in self.offers:
            if offer.gpus_per_node < 1:
                problems.append(f"{offer.gpu_name}: nodes of {offer.gpus_per_node} GPUs")
            if offer.most_gpus is not None and offer.most_gpus < 0:
                problems.append(f"{offer.gpu_name}: {offer.most_gpus} GPUs at most")
            if offer.price_per_hour is not None and not offer.price_per_hour >= 0:
                problems.append(f"{offer.gpu_name}: a price of {offer.price_per_hour} an hour")
            elif offer.price_per_hour is None and self.budget_per_hour is not None:
                problems.append(f"{offer.gpu_name}: a budget, and no price an hour")
        if self.least_engines < 0:
            problems.append(f"{self.least_engines} engines at least")
        if self.most_engines is not None and self.most_engines < max(1, self.least_engines):
            problems.append(f"{self.most_engines} engines at most, {self.least_engines} at least")
        if self.budget_per_hour is not None and not self.budget_per_hour >= 0:
            problems.append(f"a budget of {self.budget_per_hour} an hour")
        if problems:
            raise PlanBoundsError("; ".join(problems))

    def with_running(self, running: Iterable[tuple[str, int]]) -> PlanBounds:
        """Add GPUs `(name, how many)` that run without an offer: they may stay, but not grow."""
        present: Counter[str] = Counter()
        for gpu_name, gpus in running:
            if self.offer(gpu_name) is None:
                present[gpu_name] += gpus
        more = tuple(GpuOffer(name, count, gpus_per_node=1) for name, count in present.items())
        return replace(self, unlisted=self.unlisted + more)

    def price(self, gpu_name: str) -> float | None:
        """Price of a GPU of this name per hour, if known."""
        offer = self.offer(gpu_name)
        return None if offer is None else offer.price_per_hour

    def offer(self, gpu_name: str) -> GpuOffer | None:
        """The offer of GPUs of a name, or those of it that run without one."""
        known = (*self.offers, *self.unlisted)
        return next((offer for offer in known if offer.gpu_name == gpu_name), None)


def nodes_needed(engines: Iterable[tuple[int, int]], gpus_per_node: int) -> int:
    """Nodes that hold `(GPUs each, engines)`, packed large ones first, each in the fullest node.

    An engine larger than a node takes as many whole nodes as it needs; what it leaves free in the
    last one is used.
    """
    free: Counter[int] = Counter()
    nodes = 0
    for size, left in sorted(engines, reverse=True):
        whole, rest = divmod(size, gpus_per_node)
        nodes += whole * left
        if not rest:
            continue
        for room in sorted(room for room in free if room >= rest):
            while free[room] and left and room >= rest:
                a_node = room // rest
                used = min(free[room], -(-left // a_node))
                # All nodes but the last take as many as fit.
                full = used if left >= used * a_node else used - 1
                free[room] -= used
                free[room - a_node * rest] += full
                left -= full * a_node
                if full < used:
                    free[room - left * rest] += 1
                    left = 0
        if left:
            a_node = gpus_per_node // rest
            opened = -(-left // a_node)
            nodes += opened
            last = left - (opened - 1) * a_node
            free[gpus_per_node - a_node * rest] += opened - 1
            free[gpus_per_node - last * rest] += 1
    return nodes
