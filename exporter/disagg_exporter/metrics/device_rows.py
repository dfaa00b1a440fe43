"""Rows of each device in a snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.model import (
    MICROJOULES_PER_JOULE,
    SLICE_NS_PER_GPU_SECOND,
    Cell,
    DeviceFailure,
    DeviceReading,
    EngineState,
    EngineStatus,
    Reason,
    Role,
    Snapshot,
    Use,
)

# Rows that exist at 0 before anything happens: `rate()` misses the first increase of a counter that
# appears with it.
STANDING_ROLES = (Role.PREFILL, Role.DECODE, Role.MIXED, Role.NONE)
# NVIDIA's numbers: double-bit ECC, NVLink, fallen off the bus, contained and uncontained ECC.
STANDING_XIDS = (48, 74, 79, 94, 95)
SHOWN_USES = (Use.PREFILL, Use.DECODE, Use.IDLE, Use.UNATTRIBUTED)
REASONS = {
    Use.IDLE: (
        Reason.NO_ENGINE,
        Reason.STARTING,
        Reason.DRAINING,
        Reason.NO_REQUEST,
        Reason.KV_WAIT,
        Reason.HOST_GAP,
    ),
    Use.UNATTRIBUTED: (Reason.STRANGER, Reason.NO_RECORD, Reason.DUMMY),
    Use.UNOBSERVED: (Reason.NO_READING, Reason.NO_RECORD, Reason.NO_DAEMON),
}
_PHASES = "disagg_gpu_phase_seconds_total"
_ACTIVITY = "disagg_gpu_activity_seconds_total"
_ENERGY = "disagg_gpu_phase_energy_joules_total"
_REASON_FAMILIES = {
    Use.IDLE: "disagg_gpu_idle_seconds_total",
    Use.UNATTRIBUTED: "disagg_gpu_unattributed_seconds_total",
    Use.UNOBSERVED: "disagg_gpu_unobserved_seconds_total",
}


def write_devices(rows: MetricRows, snapshot: Snapshot) -> None:
    """Write inventory, assignments and the latest readings."""
    for device in snapshot.devices:
        facts = (str(device.index), device.gpu_name, device.pci_bus_id, device.device)
        rows.set("disagg_gpu_info", 1, device.gpu, *facts)
    namespaces = engine_namespaces(snapshot)
    for engine in present_engines(snapshot):
        where = (engine.pod, namespaces.get(engine.engine, ""))
        how = (engine.role, engine.source, engine.confidence)
        for gpu in engine.devices:
            rows.set("disagg_gpu_assignment_info", 1, gpu, engine.engine, *how, *where)
    memory_bytes = {device.gpu: device.memory_total_bytes for device in snapshot.devices}
    for reading in snapshot.readings:
        gpu, total_bytes = reading.gpu, reading.memory_total_bytes
        if total_bytes is None:
            total_bytes = memory_bytes.get(gpu)
        rows.set("disagg_gpu_memory_used_bytes", reading.memory_used_bytes, gpu)
        rows.set("disagg_gpu_memory_total_bytes", total_bytes, gpu)
        rows.set("disagg_gpu_power_watts", reading.power_watts, gpu)
        rows.set("disagg_gpu_sm_clock_hertz", reading.sm_clock_hertz, gpu)
        rows.set("disagg_gpu_power_limit_watts", reading.power_limit_watts, gpu)
        celsius = "disagg_gpu_temperature_celsius"
        rows.set(celsius, reading.temperature_celsius, gpu, "gpu")
        rows.set(celsius, reading.memory_temperature_celsius, gpu, "memory")
        for link, direction, count in reading.traffic:
            rows.set("disagg_gpu_link_bytes_total", count, gpu, link, direction)
        busy = reading.graphics_ratio if reading.busy_ratio is None else reading.busy_ratio
        rows.set("disagg_gpu_utilization_ratio", busy, gpu)
        _write_xids(rows, reading)
        ecc = "disagg_gpu_ecc_errors_total"
        rows.set(ecc, reading.ecc_corrected_errors, gpu, "corrected")
        rows.set(ecc, reading.ecc_uncorrected_errors, gpu, "uncorrected")
    for failure in snapshot.failures:
        _write_xids(rows, failure)
    for foreign in snapshot.foreign_work:
        rows.set("disagg_gpu_foreign_sm_ratio", foreign.sm_ratio, foreign.gpu)
        rows.set("disagg_gpu_foreign_memory_bytes", foreign.memory_bytes, foreign.gpu)


def _write_xids(rows: MetricRows, reading: DeviceReading | DeviceFailure) -> None:
    if reading.xid_errors is None:
        return
    name, gpu = "disagg_gpu_xid_errors_total", reading.gpu
    for number in STANDING_XIDS:
        rows.add(name, 0, gpu, str(number))
    for number, errors in reading.xid_errors:
        rows.add(name, errors, gpu, str(number) if number else "other")


def write_accounts(rows: MetricRows, snapshot: Snapshot) -> None:
    """Write the committed seconds of each device."""
    offset = snapshot.wall_offset_seconds
    for account in snapshot.accounts:
        gpu = account.device.gpu
        roles = dict.fromkeys((*STANDING_ROLES, *(cell.role for cell in account.slice_ns)))
        _add_by_role(rows, _PHASES, gpu, roles, SHOWN_USES, account.slice_ns)
        if account.microjoules is not None:
            _add_by_role(rows, _ENERGY, gpu, STANDING_ROLES, tuple(Use), account.microjoules)
            method = "power" if account.watts else "time"
            rows.set("disagg_gpu_energy_split_info", 1, gpu, method)
        for use, watts in account.watts.items():
            rows.set("disagg_gpu_phase_power_watts", watts, gpu, use)
        for use, reasons in REASONS.items():
            for reason in reasons:
                rows.add(_REASON_FAMILIES[use], 0, gpu, reason)
        for cell, slice_ns in account.slice_ns.items():
            if cell.use in REASONS:
                rows.add(_REASON_FAMILIES[cell.use], slice_ns, gpu, cell.reason)
        watermark, start = account.watermark_ns / 1e9, account.start_ns / 1e9
        rows.set("disagg_gpu_watermark_timestamp_seconds", watermark + offset, gpu)
        rows.set("disagg_gpu_start_timestamp_seconds", start + offset, gpu)
        for unit in dict.fromkeys(cell.unit for cell in account.active_slice_ns):
            for role in STANDING_ROLES:
                rows.add(_ACTIVITY, 0, gpu, role, unit)
        for part, slice_ns in account.active_slice_ns.items():
            rows.add(_ACTIVITY, slice_ns, gpu, part.role, part.unit)
        for throttle, throttled_ns in account.throttled_ns.items():
            rows.set("disagg_gpu_throttle_seconds_total", throttled_ns / 1e9, gpu, throttle)
    for name in (_PHASES, *_REASON_FAMILIES.values(), _ACTIVITY):
        rows.divide(name, SLICE_NS_PER_GPU_SECOND)
    rows.divide(_ENERGY, MICROJOULES_PER_JOULE)


def _add_by_role(
    rows: MetricRows,
    name: str,
    gpu: str,
    roles: Iterable[Role],
    uses: Collection[Use],
    amounts: Mapping[Cell, int],
) -> None:
    """Add a device's amounts by role and use."""
    for role in roles:
        for use in uses:
            rows.add(name, 0, gpu, role, use)
    for cell, amount in amounts.items():
        if cell.use in uses:
            rows.add(name, amount, gpu, cell.role, cell.use)


def engine_namespaces(snapshot: Snapshot) -> dict[str, str]:
    """Return the Kubernetes namespace of each engine that has an account, by its name."""
    return {account.engine: account.engine_namespace for account in snapshot.engine_accounts}


def present_engines(snapshot: Snapshot) -> tuple[EngineStatus, ...]:
    """Return the engines that are not gone."""
    return tuple(e for e in snapshot.engines if e.state is not EngineState.GONE)
