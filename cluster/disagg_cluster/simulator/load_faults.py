"""Faults of the load and its distribution: too much, too long, to the wrong engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from disagg_cluster.simulator.cluster.network import StickyLengths
from disagg_cluster.simulator.fault import FaultTargets, LastingFault
from disagg_cluster.simulator.load import Lengths


@dataclass(frozen=True, slots=True)
class Surge(LastingFault):
    """`factor` times as many requests arrive."""

    factor: float

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Change the rate."""
        targets.arrivals.factor = self.factor if on else 1.0


@dataclass(frozen=True, slots=True)
class OtherLengths(LastingFault):
    """Requests have other lengths, or share less: `then` for a while, else `usual`."""

    then: Lengths
    usual: Lengths

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Change the lengths."""
        targets.arrivals.lengths = self.then if on else self.usual


@dataclass(frozen=True, slots=True)
class Skewed(LastingFault):
    """The router favours some prefill or mixed engines over others, as far as its policy allows.

    Each gets turns in proportion to its weight, or counts as that much less loaded; the default
    weight is 1.
    """

    weights: Mapping[str, float]

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Change the weights."""
        targets.request_flow.entry_router.weights = self.weights if on else {}


@dataclass(frozen=True, slots=True)
class LongToOne(LastingFault):
    """The router sends prompts of `least_tokens` or more to one engine."""

    engine: str
    least_tokens: int

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Change the routing of long prompts."""
        sticky = StickyLengths(self.engine, self.least_tokens)
        targets.request_flow.entry_router.sticky = sticky if on else None


@dataclass(frozen=True, slots=True)
class SlowRouter(LastingFault):
    """The router takes `seconds_each` for each request, one after the other."""

    seconds_each: float

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Slow it down."""
        targets.request_flow.router_seconds = self.seconds_each if on else 0.0


@dataclass(frozen=True, slots=True)
class BoundedRouter(LastingFault):
    """The router gives each prefill or mixed engine at most so many requests at once."""

    most_in_flight: int

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Set the limit."""
        flow = targets.request_flow
        flow.entry_router.most_in_flight = (
            self.most_in_flight if on else flow.cluster.most_in_flight
        )


@dataclass(frozen=True, slots=True)
class LatencyFloor(LastingFault):
    """A constant delay before an engine has a request, however few there are.

    As caused by new connections, lookups, or a pipeline in front of the engines.
    """

    before_entry_seconds: float = 0.0
    before_decode_seconds: float = 0.0

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Set the delays."""
        flow = targets.request_flow
        flow.before_entry_seconds = self.before_entry_seconds if on else 0.0
        flow.before_decode_seconds = self.before_decode_seconds if on else 0.0
