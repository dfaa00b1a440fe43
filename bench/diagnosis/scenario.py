"""One scenario: engines, load, faults, and the right diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, replace

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.verdict.values import Cause, EngineKey
from disagg_cluster.simulator.cluster.spec import ClusterSpec, Reporting
from disagg_cluster.simulator.fault import Fault
from disagg_cluster.simulator.load import Lengths, LoadOverTime
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.model import Role

WALL_OFFSET_SECONDS = 1.75e9
REPORTING = Reporting(
    single_steps=False,
    heartbeat_seconds=5.0,
    page_seconds=5.0,
    sweep_seconds=5.0,
    wall_offset_seconds=WALL_OFFSET_SECONDS,
)
_QUIET = replace(REPORTING, engines=False, sweep_seconds=None)


@dataclass(frozen=True, slots=True)
class Truth:
    """The right diagnosis of a scenario: the cause, and the engines, empty for the pool.

    Any of several is right: `causes` holds all names of one fault, `also` other engines that it may
    be attributed to. `is_chance`: chance decides which engines of the pool it hits, and any of them
    are right. Empty without a fault.
    """

    causes: tuple[Cause, ...] = ()
    engines: frozenset[EngineKey] = frozenset()
    also: tuple[frozenset[EngineKey], ...] = ()
    is_chance: bool = False


@dataclass(frozen=True, slots=True)
class SecondFault:
    """A second fault at the same time as the first."""

    truth: Truth
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulated and recorded scenario.

    `kind` is that of the scenario file. The fault begins at `onset_seconds` and lasts to the end.
    `load_ratio` is the utilisation of the engines that compute prompts at
    `usual_requests_per_second`. `fronts`: nodes that scrape the frontend. `keeps_targets`: the
    target is raised to what is kept without a fault; else it is infeasible.
    """

    name: str
    kind: str
    seed: int
    cluster: ClusterSpec
    load: LoadOverTime
    lengths: Lengths
    targets: Targets
    usual_requests_per_second: float
    load_ratio: float
    truth: Truth = Truth()
    faults: tuple[Fault, ...] = ()
    onset_seconds: float = 180.0
    end_seconds: float = 360.0
    scrape_seconds: float = 15.0
    fronts: tuple[str, ...] = ()
    keeps_targets: bool = True
    second: SecondFault | None = None

    @property
    def deadline_seconds(self) -> float:
        """Time from the onset to the deadline for the right answer.

        For a fault from before the recording it is the end.
        """
        if self.onset_seconds <= 0:
            return self.end_seconds
        return 120.0 if self.scrape_seconds > 5.0 else 60.0

    def simulation(self) -> Simulation:
        """The scenario as it is recorded."""
        second = () if self.second is None else self.second.faults
        return self._simulation((*self.faults, *second), REPORTING)

    def twin(self, *faults: Fault) -> Simulation:
        """The scenario with these faults only, by default none, and without reports."""
        return self._simulation(faults, _QUIET)

    def pool(self, role: Role) -> frozenset[EngineKey]:
        """All engines of a role."""
        engines = self.cluster.engines
        return frozenset(EngineKey(e.node, e.name) for e in engines if e.role is role)

    def _simulation(self, faults: tuple[Fault, ...], reporting: Reporting) -> Simulation:
        return Simulation(
            self.cluster,
            self.load,
            lengths=self.lengths,
            faults=faults,
            reporting=reporting,
            seed=self.seed,
        )
