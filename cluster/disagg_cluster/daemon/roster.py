"""Adds workers to a running daemon and removes others, following its node file."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from functools import partial

from disagg_cluster.config import NodeConfig, Worker
from disagg_cluster.config.layout import Layout, place_among
from disagg_cluster.control.explanation import move_stage
from disagg_cluster.control.role_decisions import removal_gaps
from disagg_cluster.control.service import worker_view
from disagg_cluster.daemon.composition import Composition
from disagg_cluster.launch.worker_specs import spec_of
from disagg_cluster.telemetry.engine_registry import Origin
from disagg_cluster.telemetry.steps.step_feed import StepFeed
from disagg_exporter.errors import DisaggError

_log = logging.getLogger("disagg_node")

_AGAIN_SECONDS = 10.0
"""Delay before ending a worker again that could not be ended: the kernel may release it later."""


class WorkerRoster:
    """The workers of a running daemon; used in its loop.

    A removed worker is known to all parts until it has ended. An added one starts once its port and
    its devices are free.

    Args:
        parts: The parts that know the workers.
        config: The node file as last applied.
    """

    def __init__(self, parts: Composition, config: NodeConfig) -> None:
        self._parts = parts
        self._config = config
        self._layout = parts.layout
        self._ending: dict[str, Worker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def blockers(self, added: Sequence[Worker], removed: Sequence[str]) -> tuple[str, ...]:
        """What prevents adding and removing workers now; empty if nothing does."""
        if not added and not removed:
            return ()
        if self._closed:
            return ("the daemon is stopping",)
        blockers = [f"{name}: still ends since the last reload" for name in self._ending]
        move = self._parts.moving.reassigner.move
        # Whether its peers suffice without it was decided when it began.
        if move is not None and not move.step.final and removed:
            way = f"from {move.from_role} to {move.to_role}"
            blockers.append(f"{move.worker}: is being reassigned {way}; {move_stage(move)}")
        return tuple(blockers)

    def gaps(self, removed: Sequence[str], after: NodeConfig) -> tuple[str, ...]:
        """What models of the changed file would be left without; empty if they would not."""
        supervisor, moving = self._parts.workers.supervisor, self._parts.moving.reassigner
        assert supervisor is not None
        if not removed:
            return ()
        now_ns = time.monotonic_ns()
        views = [
            worker_view(each, now_ns, moving.routing_of(each.spec.name))
            for each in supervisor.snapshots()
        ]
        models = {worker.model_name for worker in after.workers}
        return removal_gaps(removed, models, views, moving.constraints())

    def clashes(self, added: Sequence[Worker]) -> tuple[str, ...]:
        """Messages about new workers whose name is already used; empty if there are none."""
        records = self._parts.registry.records
        return tuple(
            f"{worker.name}: an engine that was found here has this name"
            for worker in added
            if worker.name in records and records[worker.name].origin is Origin.ATTACHED
        )

    def layout_for(self, after: NodeConfig, source: str) -> Layout:
        """The layout with the new workers; raises ConfigError if one gets no device."""
        supervisor = self._parts.workers.supervisor
        assert supervisor is not None
        return place_among(self._layout, after, source, held=supervisor.gpus_held())

    def change(
        self,
        after: NodeConfig,
        layout: Layout,
        changed: Sequence[Worker],
        added: Sequence[Worker],
        removed: Sequence[str],
    ) -> None:
        """Apply a changed node file: update `changed` workers, add and remove others."""
        before, self._config, self._layout = self._config, after, layout
        for worker in changed:
            # One that still waits for its port or devices starts with the current file anyway.
            if worker.name in self._parts.specs:
                self._parts.moving.reassigner.respecify(worker)
        gone = {worker.name: worker for worker in before.workers if worker.name in removed}
        self._ending |= gone
        if added or removed:
            self._arrange()
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks += (asyncio.create_task(self._remove(name)) for name in gone)

    async def close(self) -> None:
        """Cancel pending removals, because the daemon is ending."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _remove(self, name: str) -> None:
        """Drain and end a worker, forget it, and start those that waited for its place."""
        supervisor = self._parts.workers.supervisor
        assert supervisor is not None
        _log.info("%s: is no longer in the node file: it is drained and stopped", name)
        try:
            while not await supervisor.end(name):
                _log.error("%s: cannot be ended, nor can another take its place", name)
                await asyncio.sleep(_AGAIN_SECONDS)
            # No await in between: no part may be asked about a worker that another has forgotten.
            [device, *_] = self._parts.layout.of(name).devices
            self._parts.engines.let_go(name, device if device.is_pseudo else None)
            del self._parts.specs[name], self._ending[name]
            self._arrange()
            await supervisor.forget(name)
        except Exception:  # noqa: BLE001 - nothing awaits this task to see its error
            _log.exception("%s: it cannot be removed, nor can another take its place", name)

    def _arrange(self) -> None:
        """Run the workers whose port and devices are free, besides those that are still ending."""
        parts, had = self._parts, self._parts.layout
        ending = tuple(self._ending.values())
        ports = {worker.port for worker in ending}
        held = {gpu for worker in ending for gpu in had.of(worker.name).gpus}

        def waits(worker: Worker) -> bool:
            place_is_held = not held.isdisjoint(self._layout.of(worker.name).gpus)
            return worker.name not in parts.specs and (worker.port in ports or place_is_held)

        there = tuple(worker for worker in self._config.workers if not waits(worker))
        placements = (*map(self._layout.of, _names(there)), *map(had.of, self._ending))
        taken = {gpu for placed in placements for gpu in placed.gpus}
        free = (each for each in had.devices if not each.is_pseudo and each.gpu not in taken)
        new = tuple(worker for worker in there if worker.name not in parts.specs)
        self._take((*there, *ending), Layout(placements, tuple(free)), new)

    def _take(self, workers: Sequence[Worker], layout: Layout, new: Sequence[Worker]) -> None:
        """Switch to these workers and this layout; start the `new` ones."""
        parts, supervisor = self._parts, self._parts.workers.supervisor
        assert supervisor is not None
        known = {device.gpu for device in parts.layout.devices}
        for device in layout.devices:
            if device.gpu not in known:
                parts.ledger.add_device(device, time.monotonic_ns())
        parts.layout = layout
        config = self._config.model_copy(update={"workers": tuple(workers)})
        for worker in new:
            name = worker.name
            spec = spec_of(worker, config, layout, parts.folder, os.environ)
            parts.specs[name] = spec
            parts.digests[name] = partial(parts.workers.command_digest, name)
            parts.names.reserve(name)
            supervisor.add(spec)
            parts.engines.add(worker, self._open_feed(name))
        parts.moving.set_workers(config, layout)
        for name in _names(new):
            supervisor.begin(name)

    def _open_feed(self, name: str) -> StepFeed | None:
        feed = self._parts.step_feed(name)
        try:
            feed.open(asyncio.get_running_loop())
        except DisaggError as error:
            _log.error("%s: its steps cannot be received: %s", name, error)
            return None
        return feed


def _names(workers: Sequence[Worker]) -> tuple[str, ...]:
    return tuple(worker.name for worker in workers)
