"""One scan of a node without a daemon: its engines, their roles and why, and what is missing."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from disagg_cluster.config import Attach
from disagg_cluster.discovery.attach_mode import AttachMode
from disagg_cluster.discovery.kubernetes_discovery import kubernetes_of
from disagg_cluster.discovery.observations.types import EngineNames
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.inspect.phase_table import PhaseRow, row_of
from disagg_cluster.inspect.views import DeviceView, EngineView
from disagg_cluster.telemetry.engine_registry import EngineRegistry
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.devices.source import DeviceSource
from disagg_exporter.model import Device, DeviceSweep, EngineStatus
from disagg_exporter.roles.evidence.types import Verdict

# The two readings of the devices are a second apart; the first pages have arrived by then, and the
# roles are known at the next scan.
TOTAL_SECONDS = 2.5
_READ_SECONDS = 1.0
_PAGES_SECONDS = 0.5
_SCAN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class NodeScan:
    """The result; `verdicts` give the reasons, by engine."""

    devices: tuple[Device, ...]
    sweep: DeviceSweep
    engines: tuple[EngineStatus, ...]
    verdicts: dict[str, Verdict]
    lost: tuple[str, ...]


def scan_node(source: DeviceSource, attach: Attach) -> NodeScan:
    """Scan this node for some seconds; leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="disagg-") as folder:
        return asyncio.run(_scan(source, attach, RunFolder(Path(folder))))


async def _scan(source: DeviceSource, attach: Attach, folder: RunFolder) -> NodeScan:
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
        await asyncio.sleep(TOTAL_SECONDS - _READ_SECONDS)
        for task in tasks:
            if task.done():
                task.result()
        engines = registry.statuses()
        verdicts = {each.engine: found.attached.verdict(each.engine) for each in engines}
        return NodeScan((*devices, *registry.devices()), sweep, engines, verdicts, found.lost())
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def view_of(scan: NodeScan, engine: EngineStatus) -> EngineView:
    """Return one engine as a page would show it; nothing was measured."""
    return EngineView(
        engine=engine.engine,
        role=engine.role.value,
        model_name=engine.model_name,
        kind=engine.kind,
        version=engine.version,
        up=bool(engine.up),
        source=scan.verdicts[engine.engine].source,
        confidence=engine.confidence,
        pod=engine.pod,
        gpus=engine.devices,
        registered=engine.dynamo.registered if engine.dynamo else None,
        follows=engine.follows,
        verified=engine.tls.verified if engine.tls else "",
        tls_fault=engine.tls.fault if engine.tls else "",
    )


def rows_of(scan: NodeScan) -> tuple[PhaseRow, ...]:
    """Return the rows of a scan; nothing was accounted, so a GPU has only its activity."""
    busy = {reading.gpu: reading.busy_ratio for reading in scan.sweep.readings}
    rows: list[PhaseRow] = []
    for device in scan.devices:
        engines = [engine for engine in scan.engines if device.gpu in engine.devices]
        place, busy_ratio = DeviceView(device.gpu, device.device), busy.get(device.gpu)
        # A pseudo-device without an engine belongs to one that disappeared during the scan.
        if not engines and not device.is_pseudo:
            rows.append(replace(row_of(place, None, {}), busy_ratio=busy_ratio))
        rows.extend(_row(scan, place, engine, busy_ratio) for engine in engines)
    rows.extend(_row(scan, None, engine, None) for engine in scan.engines if not engine.devices)
    return tuple(rows)


def _row(
    scan: NodeScan, place: DeviceView | None, engine: EngineStatus, busy_ratio: float | None
) -> PhaseRow:
    verdict = scan.verdicts[engine.engine]
    why = verdict.source
    if verdict.evidence and why != "none":
        why = f"{verdict.evidence[0].marker} is {verdict.evidence[0].value}"
    row = row_of(place, view_of(scan, engine), {})
    return replace(row, why=why, method="", busy_ratio=busy_ratio)
