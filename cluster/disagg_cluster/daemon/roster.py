"""Takes workers into a running daemon and lets others go, as its node file says now."""

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
from disagg_cluster.daemon.composition import Composition
from disagg_cluster.launch.worker_specs import spec_of
from disagg_cluster.telemetry.engine_registry import Origin
from disagg_cluster.telemetry.steps.step_feed import StepFeed
from disagg_exporter.errors import DisaggError

_log = logging.getLogger("disagg_node")

_AGAIN_SECONDS = 10.0
"""After so long one that could not be ended is ended again: the kernel may have let it go."""


class WorkerRoster:
    """The workers of a running daemon; used in its loop.

    Each that goes is known to all parts until it has ended, and to none from then on. One that
    comes begins once its port and its devices are free.

    Args:
        parts: To whom they are known.
        config: The node file as it was read last.
    """

    def __init__(self, parts: Composition, config: NodeConfig) -> None:
        self._parts = parts
        self._config = config
        self._layout = parts.layout
        self._ending: dict[str, Worker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def under_way(self, added: Sequence[Worker], removed: Sequence[str]) -> tuple[str, ...]:
        """What keeps workers from coming and going just now; empty if nothing does."""
        if not added and not removed:
            return ()
        if self._closed:
            return ("the daemon is stopping",)
        told = [f"{name}: still ends since the last reload" for name in self._ending]
        move = self._parts.moving.reassigner.move
        if move is not None and not move.step.final and move.worker in removed:
            way = f"from {move.from_role} to {move.to_role}"
            told.append(f"{move.worker}: is being reassigned {way}; {move_stage(move)}")
        return tuple(told)

    def clashes(self, added: Sequence[Worker]) -> tuple[str, ...]:
        """Which new workers have a name that is taken; empty if none has."""
        records = self._parts.registry.records
        return tuple(
            f"{worker.name}: an engine that was found here has this name"
            for worker in added
            if worker.name in records and records[worker.name].origin is Origin.ATTACHED
        )

    def layout_for(self, after: NodeConfig, source: str) -> Layout:
        """Who would have which device; raises ConfigError where a new worker gets none."""
        return place_among(self._layout, after, source)

    def change(
        self,
        after: NodeConfig,
        layout: Layout,
        changed: Sequence[Worker],
        added: Sequence[Worker],
        removed: Sequence[str],
    ) -> None:
        """Take in what a file says otherwise: `changed` workers stay, others come and go."""
        before, self._config, self._layout = self._config, after, layout
        for worker in changed:
            # One that still waits for its place begins as the file says by then.
            if worker.name in self._parts.specs:
                self._parts.moving.reassigner.respecify(worker)
        gone = {worker.name: worker for worker in before.workers if worker.name in removed}
        self._ending |= gone
        if added or removed:
            self._arrange()
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks += (asyncio.create_task(self._let_go(name)) for name in gone)

    async def close(self) -> None:
        """Wait for nothing any more: the daemon ends, and its workers with it or without it."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _let_go(self, name: str) -> None:
        """Drain and end one, then forget it and let those begin that waited for its place."""
        crew = self._parts.workers.supervisor
        assert crew is not None
        _log.info("%s: is no longer in the node file: it is drained and stopped", name)
        try:
            while not await crew.end(name):
                _log.error("%s: cannot be ended, nor can another take its place", name)
                await asyncio.sleep(_AGAIN_SECONDS)
            # Without a pause: nobody asks for what another part no longer knows.
            [device, *_] = self._parts.layout.of(name).devices
            self._parts.engines.let_go(name, device if device.is_pseudo else None)
            del self._parts.specs[name], self._ending[name]
            self._arrange()
            await crew.forget(name)
        except Exception:  # noqa: BLE001 - nobody waits for this task, so nobody would be told
            _log.exception("%s: it cannot be let go, nor can another take its place", name)

    def _arrange(self) -> None:
        """Have the workers of the file whose place is free, and those that have not ended yet."""
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
        """Have these workers, of which some are new, on these devices."""
        parts, crew = self._parts, self._parts.workers.supervisor
        assert crew is not None
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
            parts.names.take(name)
            crew.add(spec)
            parts.engines.add(worker, self._open_feed(name))
        parts.moving.take(config, layout)
        for name in _names(new):
            crew.begin(name)

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
