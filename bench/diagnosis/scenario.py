"""One scenario: engines, load, what goes wrong, and what is true of it."""

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
_QUIET = replace(REPORTING, heartbeat_seconds=None, page_seconds=None, sweep_seconds=None)


@dataclass(frozen=True, slots=True)
class Truth:
    """What holds requests back in a scenario: the cause, and the engines, none for the pool.

    Where several are named any of them is right: `causes` that one fact of physics may be called
    by, and in `also` other engines that it may be said of. `is_chance`: which engines of the pool
    it hits is chance, and any part of them is right. Empty where nothing does.
    """

    causes: tuple[Cause, ...] = ()
    engines: frozenset[EngineKey] = frozenset()
    also: tuple[frozenset[EngineKey], ...] = ()
    is_chance: bool = False


@dataclass(frozen=True, slots=True)
class SecondFault:
    """What goes wrong beside the first fault, at the same time."""

    truth: Truth
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated and recorded.

    `kind` is that of the scenario file. The fault begins at `onset_seconds` and lasts to the end.
    `load_ratio` is how full a load of `usual_requests_per_second` makes the engines that read
    prompts. `fronts`: nodes that read the frontend's page. `keeps_targets`: the target is one that
    is kept while nothing is wrong, and is raised to that; else it was promised what cannot be.
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
        """From the onset until the right answer must stand.

        What stands from before the recording must be told by its end.
        """
        if self.onset_seconds <= 0:
            return self.end_seconds
        return 120.0 if self.scrape_seconds > 5.0 else 60.0

    def simulation(self) -> Simulation:
        """The scenario as it is recorded."""
        second = () if self.second is None else self.second.faults
        return self._simulation((*self.faults, *second), REPORTING)

    def twin(self, *faults: Fault) -> Simulation:
        """The same with these faults only, by default none, and with nobody listening."""
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
