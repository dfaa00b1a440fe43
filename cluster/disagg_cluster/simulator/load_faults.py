"""Faults of the load and of how it is shared out: too much, too long, to the wrong engine."""

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
        """Let more come."""
        targets.arrivals.factor = self.factor if on else 1.0


@dataclass(frozen=True, slots=True)
class OtherLengths(LastingFault):
    """Requests are of other lengths, or have less in common: `then` for a while, else `usual`."""

    then: Lengths
    usual: Lengths

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Change what is asked."""
        targets.arrivals.lengths = self.then if on else self.usual


@dataclass(frozen=True, slots=True)
class Skewed(LastingFault):
    """The router favours some prefill or mixed engines over others, as its policy can.

    Each gets so many turns, or is held for so many times less loaded; without a weight it has 1.
    """

    weights: Mapping[str, float]

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Change the router's mind."""
        targets.request_flow.entry_router.weights = self.weights if on else {}


@dataclass(frozen=True, slots=True)
class LongToOne(LastingFault):
    """The router sends prompts of `least_tokens` or more to one engine."""

    engine: str
    least_tokens: int

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Change the router's mind."""
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
    """The router lets each prefill or mixed engine have so many requests at once and no more."""

    most_in_flight: int

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Bind it."""
        flow = targets.request_flow
        flow.entry_router.most_in_flight = (
            self.most_in_flight if on else flow.cluster.most_in_flight
        )


@dataclass(frozen=True, slots=True)
class LatencyFloor(LastingFault):
    """So much passes before an engine has a request, however few there are.

    As connections that are made anew, look-ups, or a pipeline in front of the engines take.
    """

    before_entry_seconds: float = 0.0
    before_decode_seconds: float = 0.0

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Let it pass."""
        flow = targets.request_flow
        flow.before_entry_seconds = self.before_entry_seconds if on else 0.0
        flow.before_decode_seconds = self.before_decode_seconds if on else 0.0
