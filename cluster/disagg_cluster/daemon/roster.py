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
from disagg_cluster.daemon.composition import Composition
from disagg_cluster.launch.worker_specs import spec_of
from disagg_cluster.telemetry.steps.step_feed import StepFeed
from disagg_exporter.errors import DisaggError

_log = logging.getLogger("disagg_node")


class WorkerRoster:
    """The workers of a running daemon; used in its loop.

    Args:
        parts: To whom they are known.
        config: The node file as it was read last.
    """

    def __init__(self, parts: Composition, config: NodeConfig) -> None:
        self._parts = parts
        self._config = config
        self._ending: tuple[str, ...] = ()
        self._task: asyncio.Task[None] | None = None

    def objections(self, added: Sequence[Worker], removed: Sequence[str]) -> tuple[str, ...]:
        """What keeps workers from coming and going just now; empty if nothing does."""
        if not added and not removed:
            return ()
        told = [f"{name}: still ends since the last reload: try later" for name in self._ending]
        move = self._parts.moving.reassigner.move
        if move is not None and not move.step.final and move.worker in removed:
            told.append(f"{move.worker}: is just being given another role: try later")
        told += [
            f"{worker.name}: an engine that was found here has this name"
            for worker in added
            if worker.name in self._parts.registry.records and worker.name not in self._ending
        ]
        return tuple(told)

    def layout_for(self, after: NodeConfig, source: str) -> Layout:
        """Who would have which device; raises ConfigError where a new worker gets none."""
        return place_among(self._parts.layout, after, source)

    def change(
        self, after: NodeConfig, layout: Layout, added: Sequence[Worker], removed: Sequence[str]
    ) -> None:
        """Start workers that are new, and drain and end others; who needs their place waits."""
        had, before, self._config = self._parts.layout, self._config, after
        if not added and not removed:
            return
        gone = tuple(worker for worker in before.workers if worker.name in removed)
        held = {gpu for worker in gone for gpu in had.of(worker.name).gpus}
        ports = {worker.port for worker in gone}
        later = tuple(
            worker
            for worker in added
            if worker.port in ports or held.intersection(layout.of(worker.name).gpus)
        )
        there = tuple(worker for worker in after.workers if worker not in later)
        placements = (*map(layout.of, _names(there)), *map(had.of, _names(gone)))
        taken = {gpu for placed in placements for gpu in placed.gpus}
        free = tuple(device for device in had.devices if device.gpu not in taken)
        new = tuple(worker for worker in there if worker in added)
        self._take((*there, *gone), Layout(placements, free), new)
        if gone:
            self._ending = _names(gone)
            self._task = asyncio.create_task(self._end(layout, later))

    async def close(self) -> None:
        """Wait for nothing any more: the daemon ends, and its workers with it or without it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _end(self, layout: Layout, later: Sequence[Worker]) -> None:
        """Wait for the end of those that go; then let those begin that wait for their place."""
        parts, crew = self._parts, self._parts.workers.supervisor
        assert crew is not None
        for name in self._ending:
            _log.info("%s: is no longer in the node file: it is drained and stopped", name)
        ended = await asyncio.gather(*map(crew.dismiss, self._ending))
        left = [name for name, has in zip(self._ending, ended, strict=True) if not has]
        if left:
            _log.error("%s: cannot be ended, nor can others take its place", ", ".join(left))
            return
        for name in self._ending:
            parts.engines.remove(name)
            del parts.specs[name], parts.digests[name]
        self._take(self._config.workers, layout, later)
        self._ending = ()

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
