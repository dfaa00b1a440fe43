"""Feeds ledgers from a simulation, as the daemons of its nodes would feed theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from disagg_cluster.simulator.cluster.events import Event
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.accounting import Ledger
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Assignment, DeviceSweep
from disagg_exporter.steps.messages import Message, MessageKind

_NS = 1_000_000_000


def drive(
    ledgers: Mapping[str, Ledger],
    simulation: Simulation,
    until_ns: int,
    *,
    advance_seconds: float = 1.0,
    watch: Callable[[int, Event], None] | None = None,
) -> None:
    """Run a simulation until then, and let the ledger of each node hear what is its own.

    The ledgers must know their devices (`add_devices`). `watch` sees every event as well.
    """
    step_ns = round(advance_seconds * _NS)
    next_ns = simulation.now_ns + step_ns
    for t_ns, event in simulation.events(until_ns):
        while next_ns <= t_ns:
            for ledger in ledgers.values():
                ledger.advance(next_ns)
            next_ns += step_ns
        node = simulation.node_of(event)
        if node is not None and node in ledgers:
            feed(ledgers[node], event, t_ns)
        if watch is not None:
            watch(t_ns, event)
    for ledger in ledgers.values():
        ledger.advance(until_ns)


def add_devices(ledgers: Mapping[str, Ledger], simulation: Simulation) -> None:
    """Let each node's ledger account for the node's GPUs from now on."""
    for node, ledger in ledgers.items():
        for device in simulation.nodes[node]:
            ledger.add_device(device, simulation.now_ns)


def feed(ledger: Ledger, event: Event, now_ns: int) -> None:
    """Give one event to a ledger; pages and the ends of requests are nothing to it."""
    match event:
        case Message(kind=MessageKind.STEP, step=step) if step is not None:
            ledger.step(event.key, step, now_ns=now_ns)
        case Message(step=step) if step is not None:
            overlapped = bool(event.flags & wire.OVERLAPPED)
            ledger.heartbeat(event.key, step, overlapped=overlapped, now_ns=now_ns)
        case Assignment():
            ledger.assign(event)
        case DeviceSweep():
            ledger.read(event)
