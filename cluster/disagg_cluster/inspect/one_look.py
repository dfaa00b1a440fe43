"""One look at a node without a daemon: its engines, what they are for and why, and what is lost."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from disagg_cluster.config import Attach
from disagg_cluster.discovery.attach_mode import AttachMode
from disagg_cluster.discovery.kubernetes_discovery import kubernetes_of
from disagg_cluster.discovery.observations.types import EngineNames
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.inspect.phase_table import PhaseRow, state_of
from disagg_cluster.telemetry.engine_registry import EngineRegistry
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.devices.source import DeviceSource
from disagg_exporter.model import Device, DeviceSweep, EngineStatus
from disagg_exporter.roles.evidence.types import Verdict

# Two readings of the devices lie a second apart; the first pages are there by then, and the roles
# at the next look after them.
LOOK_SECONDS = 2.5
_READ_SECONDS = 1.0
_PAGES_SECONDS = 0.5
_SCAN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class OneLook:
    """What was seen; `verdicts` say why, by engine."""

    devices: tuple[Device, ...]
    sweep: DeviceSweep
    engines: tuple[EngineStatus, ...]
    verdicts: dict[str, Verdict]
    lost: tuple[str, ...]


def look_once(source: DeviceSource, attach: Attach) -> OneLook:
    """Look at this node for some seconds; leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="disagg-") as folder:
        return asyncio.run(_look(source, attach, RunFolder(Path(folder))))


async def _look(source: DeviceSource, attach: Attach, folder: RunFolder) -> OneLook:
    loop = asyncio.get_running_loop()
    devices = source.inventory()
    sweep = source.sweep(time.monotonic_ns())
    ledger, capacity_model = Ledger(), CapacityModel(itl_seconds=1.0)
    registry = EngineRegistry(ledger, _PAGES_SECONDS, lines_seconds=0.75 * _SCAN_SECONDS)
    found = AttachMode(
        attach,
        registry,
        EngineNames(),
        folder,
        ledger,
        capacity_model,
        devices,
        lambda: sweep.readings,
        kubernetes_of(attach, devices, folder.pods),
        interval_seconds=_SCAN_SECONDS,
    )
    tasks = [loop.create_task(found.run()), loop.create_task(registry.pages.run())]
    try:
        await asyncio.sleep(_READ_SECONDS)
        sweep = source.sweep(time.monotonic_ns())
        await asyncio.sleep(LOOK_SECONDS - _READ_SECONDS)
        for task in tasks:
            if task.done():
                task.result()
        engines = registry.statuses()
        verdicts = {each.engine: found.attached.verdict(each.engine) for each in engines}
        return OneLook((*devices, *registry.devices()), sweep, engines, verdicts, found.lost())
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def rows_of(look: OneLook) -> tuple[PhaseRow, ...]:
    """The rows of a look; nothing was accounted, so of a GPU only its activity is known."""
    busy = {reading.gpu: reading.busy_ratio for reading in look.sweep.readings}
    rows: list[PhaseRow] = []
    for device in look.devices:
        engines = [engine for engine in look.engines if device.gpu in engine.devices]
        place = (device.gpu, device.device)
        if not engines and device.is_pseudo:
            continue  # of an engine that has gone while we looked
        if not engines:
            rows.append(PhaseRow(*place, busy_ratio=busy.get(device.gpu)))
        rows.extend(
            _row(place, engine, look.verdicts[engine.engine], busy.get(device.gpu))
            for engine in engines
        )
    nowhere: Sequence[EngineStatus] = [engine for engine in look.engines if not engine.devices]
    rows.extend(_row(("", ""), engine, look.verdicts[engine.engine], None) for engine in nowhere)
    return tuple(rows)


def _row(
    place: tuple[str, str], engine: EngineStatus, verdict: Verdict, busy_ratio: float | None
) -> PhaseRow:
    why = verdict.evidence[0] if verdict.evidence else None
    registered = engine.dynamo.registered if engine.dynamo else None
    return PhaseRow(
        *place,
        engine=engine.engine,
        role=engine.role.value,
        why=f"{why.marker} is {why.value}" if why and verdict.source != "none" else verdict.source,
        confidence=engine.confidence,
        state=state_of(up=bool(engine.up), registered=registered, follows=engine.follows),
        model_name=engine.model_name,
        pod=engine.pod,
        busy_ratio=busy_ratio,
    )
