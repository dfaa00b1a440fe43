"""Small simulated clusters, and short ways to run them through a ledger."""

from __future__ import annotations

from dataclasses import dataclass, field

from disagg_cluster.simulator.cluster.event_queue import Event, RequestEnded, SimulatedPage
from disagg_cluster.simulator.cluster.spec import ClusterSpec, EngineSpec, Reporting, disaggregated
from disagg_cluster.simulator.engine.batch import Outcome
from disagg_cluster.simulator.engine.hardware import Model
from disagg_cluster.simulator.load import LoadOverTime, Mix
from disagg_cluster.simulator.simulation import Simulation, add_devices, drive
from disagg_exporter.accounting import Ledger
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import SECOND_NS, Assignment, DeviceSweep, EngineAccount, Role, Step
from disagg_exporter.steps.messages import ControlMessage, MessageKind

NODE = "sim-node"

TINY = Model(
    "tiny",
    active_parameters=1e8,
    dense_weight_bytes=2e8,
    layers=2,
    hidden=64,
    attention_width=64,
    kv_bytes_per_token=512,
)
"""Small enough to simulate a minute of it instantly."""


@dataclass(frozen=True, slots=True)
class StoppedLoad:
    """A load that stops, so that everything ends."""

    shape: LoadOverTime
    seconds: float

    def rate(self, t_seconds: float) -> Mix:
        return self.shape.rate(t_seconds) if t_seconds < self.seconds else Mix(0, 0, 0)


@dataclass(slots=True)
class SimulationEvents:
    """The events of a simulation by kind; messages with the time of their arrival."""

    messages: list[tuple[int, ControlMessage]] = field(default_factory=list)
    pages: list[SimulatedPage] = field(default_factory=list)
    sweeps: list[DeviceSweep] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    requests: list[RequestEnded] = field(default_factory=list)

    def __call__(self, t_ns: int, event: Event) -> None:
        match event:
            case ControlMessage():
                self.messages.append((t_ns, event))
            case SimulatedPage():
                self.pages.append(event)
            case DeviceSweep():
                self.sweeps.append(event)
            case Assignment():
                self.assignments.append(event)
            case RequestEnded():
                self.requests.append(event)

    def steps(self, engine: str) -> list[Step]:
        """Return the step records of one engine, in the order of arrival."""
        return [
            message.step
            for _, message in self.messages
            if message.kind is MessageKind.STEP
            and message.key.engine == engine
            and message.step is not None
        ]


def pair(prefill: int = 1, decode: int = 1, **more: object) -> ClusterSpec:
    """Return prefill and decode engines on one node."""
    return ClusterSpec(disaggregated(prefill, decode, **more))  # type: ignore[arg-type]


def alone(**more: object) -> ClusterSpec:
    """Return one engine that does both phases."""
    spec: dict[str, object] = {"name": "mixed-0", "role": Role.MIXED, "gpus": ("GPU-0",), **more}
    return ClusterSpec((EngineSpec(**spec),))  # type: ignore[arg-type]


def listen(simulation: Simulation, seconds: float) -> SimulationEvents:
    """Run a simulation and keep its events."""
    events = SimulationEvents()
    for t_ns, event in simulation.events(round(seconds * SECOND_NS)):
        events(t_ns, event)
    return events


def account(simulation: Simulation, seconds: float) -> tuple[Ledger, SimulationEvents]:
    """Run a simulation through a ledger; return the ledger and the events."""
    ledgers = {node: Ledger() for node in simulation.nodes}
    add_devices(ledgers, simulation)
    events = SimulationEvents()
    drive(ledgers, simulation, round(seconds * SECOND_NS), watch=events)
    return ledgers[NODE], events


def engine_account(ledger: Ledger, engine: str, seconds: float) -> EngineAccount:
    """Return one engine's account."""
    accounts = ledger.engine_accounts(round(seconds * SECOND_NS))
    return next(account for account in accounts if account.engine == engine)


def busy_seconds(ledger: Ledger, engine: str, seconds: float) -> float:
    """Return the GPU-seconds that a ledger attributes to an engine."""
    return sum(engine_account(ledger, engine, seconds).gpu_seconds.values())


QUIET = Reporting(heartbeat_seconds=None, page_seconds=None, sweep_seconds=None)
"""Steps and nothing else."""


def kind_of_step(step: Outcome) -> int:
    """Return the kind by which the step would be counted."""
    return wire.step_kind(
        context_requests=step.context_requests,
        context_tokens=step.context_tokens,
        generation_tokens=step.generation_tokens,
        computed_tokens=step.computed_tokens,
        external_tokens=step.external_tokens,
    )
