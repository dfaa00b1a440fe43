"""One engine through its life: a process, its death, the next process, on the same GPUs."""

from __future__ import annotations

import random
from typing import Protocol

from disagg_cluster.simulator.cluster.event_queue import EventQueue
from disagg_cluster.simulator.cluster.spec import EngineSpec, Reporting
from disagg_cluster.simulator.engine.roofline import AT_REST
from disagg_cluster.simulator.gpus import ForeignProcess, GpuGroup
from disagg_cluster.simulator.process import EngineProcess, ProcessListener
from disagg_exporter.model import SECOND_NS, Assignment, DeviceReading, EngineState, Throttle


class ServerListener(ProcessListener, Protocol):
    """Receives notifications about a server and its requests."""

    def became_ready(self, server: Server) -> None:
        """Called when it is ready."""

    def died(self, process: EngineProcess) -> None:
        """Called when its process has died with the requests in it."""


class Server:
    """An engine as its node sees it.

    Args:
        spec: Its specification.
        first_pid: The process id of its first process; later ones count up.
        queue: The virtual time.
        reporting: What it reports, and how often.
        listener: Notified about events in it.
        seed: Of its random sources; each process has a separate one.
    """

    def __init__(
        self,
        spec: EngineSpec,
        first_pid: int,
        queue: EventQueue,
        reporting: Reporting,
        listener: ServerListener,
        seed: str,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.gpus = GpuGroup(spec.gpu, spec.gpus, queue.now_ns)
        self.process: EngineProcess | None = None
        self._next_pid = first_pid
        self._queue = queue
        self._reporting = reporting
        self._listener = listener
        self._seed = seed

    @property
    def ready(self) -> bool:
        """Whether it accepts requests."""
        return self.process is not None

    def start(self, *, ready_now: bool = False) -> None:
        """Start a process; it is ready when its model is loaded."""
        self.gpus.pids = (self._next_pid,)
        self._next_pid += 1
        self.gpus.memory_used_bytes = round(self.spec.gpu.memory_bytes * 0.9)
        if ready_now:
            self._get_ready(cold=False)
        else:
            self._emit_state(EngineState.STARTING)
            self._queue.after(self.spec.start_seconds, self._get_ready)

    def crash(self, restart_after_seconds: float | None) -> None:
        """Kill its process; the next one starts after a delay, None: never.

        Does nothing while none is ready.
        """
        process, self.process = self.process, None
        if process is None:
            return
        process.die()
        self._emit_state(EngineState.GONE)
        self.gpus.pids, self.gpus.memory_used_bytes = (), 0
        self._listener.died(process)
        if restart_after_seconds is not None:
            self._queue.after(restart_after_seconds, self.start)

    def throttle(self, gpu: str, clock_ratio: float, reason: Throttle = Throttle.THERMAL) -> None:
        """Run one of its GPUs at this part of its clock; 1 ends it."""
        self.gpus.throttle(gpu, clock_ratio, reason)
        if self.process is not None:
            self.process.reprice()

    def share(self, gpu: str, foreign: ForeignProcess | None) -> None:
        """Put a foreign process on one of its GPUs; None ends it."""
        self.gpus.share(gpu, foreign)
        if self.process is not None:
            self.process.reprice()

    def read_gpus(self) -> list[DeviceReading]:
        """Return the driver's current readings of its GPUs."""
        if self.process is not None:
            return self.process.read_gpus()
        return self.gpus.read(self._queue.now_ns, 0, AT_REST)

    def _get_ready(self, *, cold: bool = True) -> None:
        pid = self.gpus.pids[0]
        self._emit_state(EngineState.READY)
        rng = random.Random(f"{self._seed} {self.name} {pid}")
        self.process = EngineProcess(
            self.spec, pid, self._queue, self.gpus, self._reporting, self._listener, rng
        )
        if cold:
            slowdowns, now_ns = self.process.engine.slowdowns, self._queue.now_ns
            slowdowns.cold, slowdowns.cold_ns = self.spec.cold_factor, now_ns
            slowdowns.warm_ns = now_ns + round(self.spec.warm_up_seconds * SECOND_NS)
        self._listener.became_ready(self)

    def _emit_state(self, state: EngineState) -> None:
        self._queue.emit(
            Assignment(
                engine=self.name,
                role=self.spec.role,
                devices=self.spec.gpus,
                state=state,
                since_ns=self._queue.now_ns,
                pids=self.gpus.pids,
                model_name=self.spec.model.name,
            )
        )
