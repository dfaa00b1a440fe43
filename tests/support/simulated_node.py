"""The state of a node's daemon with simulated engines: real accounting, real snapshots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from disagg_cluster.lifecycle.state import WorkerState
from disagg_cluster.simulator.cluster.event_queue import Event, SimulatedPage
from disagg_cluster.simulator.simulation import Simulation, add_devices, feed
from disagg_cluster.telemetry.snapshot import LastSweep, compose, read_accounting
from disagg_cluster.telemetry.source_selection import SourceCandidate, SourceSelection
from disagg_exporter.accounting import Ledger
from disagg_exporter.attribution.cost_model.learned_costs import LearnedCost
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.capacity.curves.curve import LearnedLimits
from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.engine_pages.window import CumulativeCounts
from disagg_exporter.model import (
    SECOND_NS,
    Assignment,
    DeviceSweep,
    EnginePage,
    EngineState,
    EngineStatus,
    FrontCounts,
    GpuPrice,
    Role,
    RouterStatus,
    Snapshot,
    Step,
    StepLimits,
    StreamKey,
)
from disagg_exporter.serving.requests import ModelRequests
from disagg_exporter.steps.messages import ControlMessage, MessageKind
from disagg_exporter.steps.rows import rows_of

UP_BEFORE_SECONDS = 86_400.0
"""The uptime of engines that exist when a simulation begins."""


@dataclass(frozen=True, slots=True)
class LearnedEngineCosts:
    """What a node has learned of an engine: the costs of its steps, and its limits."""

    costs: Mapping[int, LearnedCost]
    limits: LearnedLimits


@dataclass(slots=True)
class _Engine:
    """One engine of the node: its place, start time, page, and counts."""

    assignment: Assignment
    start_timestamp_seconds: float
    page: EnginePage | None = None
    tally: CumulativeCounts = field(default_factory=CumulativeCounts)
    keys: SeriesKeys = field(default_factory=SeriesKeys)

    def assign(self, assignment: Assignment) -> None:
        """Set its new state; an ended process has no page, and the next counts from 0."""
        self.assignment = assignment
        if assignment.state in (EngineState.GONE, EngineState.STARTING):
            self.page = None
            self.tally.restart()

    def show(self, shown: SimulatedPage) -> None:
        """Ingest its next page."""
        self.page = parse_page(shown.text.encode(), shown.t_ns, self.keys)
        self.tally.ingest(self.page)

    def candidate(self) -> SourceCandidate:
        """Return the engine as one that reports no steps."""
        assigned = self.assignment
        return SourceCandidate(
            assigned.engine,
            assigned.role,
            assigned.devices,
            pid=assigned.pids[0] if assigned.pids else None,
            ready_ns=assigned.since_ns if assigned.state is EngineState.READY else None,
            page=self.page,
            last_received={},
        )

    def status(self, limits: StepLimits, *, found: bool) -> EngineStatus:
        """Return its status, with its reported limits; `found` if others started it."""
        assigned = self.assignment
        return EngineStatus(
            engine=assigned.engine,
            role=assigned.role,
            kind="vllm",
            version="0.32.0",
            model_name=assigned.model_name,
            devices=assigned.devices,
            state=assigned.state,
            up=assigned.state is EngineState.READY,
            source="vllm" if found else "config",
            confidence="certain",
            page=self.page,
            serving=self.tally.counts,
            pid=assigned.pids[0] if assigned.pids else None,
            start_timestamp_seconds=self.start_timestamp_seconds if assigned.pids else None,
            limits=limits,
        )


class SimulatedNode:
    """The node of this name in a simulation.

    Args:
        name: Its name.
        simulation: Its engines and GPUs.
        itl_seconds: The users' target between tokens.
        wall_offset_seconds: Added to the simulation's time, it gives Unix time.
        books_energy: Whether joules are accounted for: a third of the work of long recordings.
        learned: What it has learned of its engines before, by role.
        gpu_price: The price of a GPU-hour.
        by_page: Whether engines were found and report no steps, so that only their pages are known.
    """

    def __init__(
        self,
        name: str,
        simulation: Simulation,
        *,
        itl_seconds: float = 0.05,
        wall_offset_seconds: float,
        books_energy: bool = True,
        learned: Mapping[Role, LearnedEngineCosts] | None = None,
        gpu_price: GpuPrice | None = None,
        by_page: bool = False,
    ) -> None:
        self.name = name
        self.ledger = Ledger()
        add_devices({name: self.ledger}, simulation)
        self._devices = simulation.nodes[name]
        self._servers = simulation.servers
        self._capacity_model = CapacityModel(itl_seconds)
        self._requests = ModelRequests()
        self._engines: dict[str, _Engine] = {}
        self._last_sweep = LastSweep("sim")
        self._books_energy = books_energy
        self._learned = learned
        self._gpu_price = gpu_price
        self._by_page = SourceSelection(self.ledger) if by_page else None
        self._steps: defaultdict[StreamKey, list[Step]] = defaultdict(list)
        self._wall_offset_seconds = wall_offset_seconds

    def hear(self, event: Event, now_ns: int) -> None:
        """Ingest one event of its engines or devices."""
        if isinstance(event, ControlMessage):
            if self._by_page is not None:
                return
            if event.kind is MessageKind.STEP and event.step is not None:
                self._steps[event.key].append(event.step)
                return
        self._receive_steps(now_ns)
        feed(self.ledger, self._booked(event), now_ns)
        match event:
            case Assignment():
                self._assign(event)
            case SimulatedPage():
                self._engines[event.engine].show(event)
            case DeviceSweep():
                t_seconds = now_ns / SECOND_NS + self._wall_offset_seconds
                self._last_sweep = LastSweep("sim", event, 0.001, t_seconds)
            case ControlMessage(step=step) if step is not None:
                self._capacity_model.heartbeat(event.key, step)

    def advance(self, now_ns: int) -> None:
        """Advance the accounting, as each second."""
        if self._by_page is not None:
            here = [known.candidate() for known in self._engines.values()]
            self._by_page.select(here, now_ns)
        self.learn_limits(now_ns)
        self.ledger.advance(now_ns)
        if self._learned is not None:
            for engine, known in self._engines.items():
                learned = self._learned.get(known.assignment.role)
                if learned is not None:
                    self.ledger.restore_costs(engine, learned.costs)
                    self._capacity_model.restore_limits(engine, learned.limits, now_ns)
            self._learned = None

    def learn_limits(self, now_ns: int) -> None:
        """Learn the engines' limits, as each second, without advancing the accounting."""
        self._receive_steps(now_ns)
        self._capacity_model.advance(self._statuses(), now_ns, self._last_sweep.readings(now_ns))

    def learned(self, engine: str, now_ns: int) -> LearnedEngineCosts:
        """Return what it has learned of an engine by now."""
        self._receive_steps(now_ns)
        self.ledger.advance(now_ns)
        limits = self._capacity_model.limits(engine, now_ns)
        return LearnedEngineCosts(self.ledger.costs(engine), limits)

    def count_requests(self, fronts: Iterable[FrontCounts], now_ns: int) -> None:
        """Ingest the counts of engines and frontends about users' requests."""
        self._requests.ingest(self._statuses(), tuple(fronts), now_ns)

    def snapshot(self, now_ns: int, router: RouterStatus | None = None) -> Snapshot:
        """Return the snapshot behind its page."""
        self._receive_steps(now_ns)
        engines = self._statuses()
        certain = Snapshot(
            taken_ns=now_ns,
            wall_offset_seconds=self._wall_offset_seconds,
            fresh_until_ns=now_ns,
            worker_states=tuple(WorkerState),
            collectors=(self._last_sweep.status(now_ns),),
            simulated=True,
            router=router,
        )
        return compose(
            certain,
            read_accounting(self.ledger, self._capacity_model, engines, now_ns),
            self.ledger.fast_gauges(now_ns),
            devices=self._devices,
            last_sweep=self._last_sweep,
            engines=engines,
            parents=lambda _pid: (),
            requests=self._requests.accounts(),
            gpu_price=self._gpu_price,
        )

    def _receive_steps(self, now_ns: int) -> None:
        """Ingest the steps since the last call, many at once, as a daemon receives them."""
        steps, self._steps = self._steps, defaultdict(list)
        for key, several in steps.items():
            rows = rows_of(several)
            self.ledger.steps(key, rows, now_ns=now_ns)
            self._capacity_model.steps(key, rows, overlapped=False)

    def _assign(self, event: Assignment) -> None:
        since_seconds = event.since_ns / SECOND_NS + self._wall_offset_seconds
        known = self._engines.get(event.engine)
        if known is None:
            # It existed before the simulation, and is warm.
            began_seconds = since_seconds - UP_BEFORE_SECONDS
            known = self._engines[event.engine] = _Engine(event, began_seconds)
        elif event.state is EngineState.STARTING:
            known.start_timestamp_seconds = since_seconds
        known.assign(event)

    def _booked(self, event: Event) -> Event:
        if self._books_energy or not isinstance(event, DeviceSweep):
            return event
        readings = (replace(each, power_watts=None, energy_joules=None) for each in event.readings)
        return replace(event, readings=tuple(readings))

    def _statuses(self) -> tuple[EngineStatus, ...]:
        found = self._by_page is not None
        return tuple(
            known.status(self._limits(engine), found=found)
            for engine, known in self._engines.items()
        )

    def _limits(self, engine: str) -> StepLimits:
        """Return the limits that the plugin of its process reports."""
        process = self._servers[engine].process
        if process is None:
            return StepLimits()
        limits = process.scheduler.limits
        return StepLimits(limits.step_tokens, limits.running_requests)
