"""How full engines are, as rows: each by itself, and summed up as GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from disagg_exporter.capacity.peaks import peak_of
from disagg_exporter.metrics.rows.device import engine_namespaces, present_engines
from disagg_exporter.metrics.rows.sheet import Sheet
from disagg_exporter.model import Device, EngineCapacity, EngineState, Phase, Role, Snapshot


def write_capacity(sheet: Sheet, snapshot: Snapshot) -> None:
    """Write the capacity in use, and the limits behind it."""
    capacities = {capacity.engine: capacity for capacity in snapshot.capacities}
    for capacity in capacities.values():
        _write_limits(sheet, capacity)
    for share in snapshot.gpu_shares:
        sheet.put("disagg_engine_gpu_sm_ratio", share.sm_ratio, share.engine, share.gpu)
    devices = {device.gpu: device for device in snapshot.devices}
    namespaces = engine_namespaces(snapshot)
    ready = [e for e in present_engines(snapshot) if e.state is EngineState.READY]
    sharers = Counter(gpu for engine in ready for gpu in engine.devices)
    for engine in ready:
        if engine.engine in capacities:
            on = [devices[gpu] for gpu in engine.devices if gpu in devices]
            _write_efficiency(sheet, capacities[engine.engine], engine.role, on)
        known = capacities.get(engine.engine)
        if known is None or known.used_ratio is None:
            continue
        used = known.used_ratio
        sheet.put("disagg_engine_capacity_used_ratio", used, engine.engine, engine.role)
        for device in (devices[gpu] for gpu in engine.devices if gpu in devices):
            # A GPU under two engines is half of each one's.
            gpus = device.weight / sharers[device.gpu]
            namespace = namespaces.get(engine.engine, "")
            key = (engine.role, engine.model_name, device.gpu_name, namespace)
            sheet.add("disagg_node_capacity_used_gpus", used * gpus, *key)
            sheet.add("disagg_node_capacity_known_gpus", gpus, *key)


def _write_efficiency(
    sheet: Sheet, capacity: EngineCapacity, role: Role, devices: Sequence[Device]
) -> None:
    peaks = [peak for d in devices if (peak := peak_of(d.gpu_name, d.weight)) is not None]
    if not peaks or len(peaks) < len(devices) or capacity.flops_per_second is None:
        return
    engine = capacity.engine
    flops = sum(peak.flops_per_second for peak in peaks)
    sheet.put("disagg_engine_peak_flops_per_second", flops, engine)
    ratio = capacity.flops_per_second / flops
    sheet.put("disagg_engine_model_flops_ratio", ratio, engine, role)
    if capacity.bytes_per_second is not None:
        most = sum(peak.bytes_per_second for peak in peaks)
        sheet.put("disagg_engine_peak_bytes_per_second", most, engine)
        ratio = capacity.bytes_per_second / most
        sheet.put("disagg_engine_model_bandwidth_ratio", ratio, engine, role)


def _write_limits(sheet: Sheet, capacity: EngineCapacity) -> None:
    engine, prefill, decode = capacity.engine, capacity.prefill, capacity.decode
    sheet.put("disagg_engine_bound_info", 1, engine, capacity.bottleneck)
    if prefill is not None:
        sheet.put("disagg_engine_prefill_knee_tokens", prefill.knee_tokens, engine)
        rate = prefill.tokens_per_second
        sheet.put("disagg_engine_prefill_knee_tokens_per_second", rate, engine)
        known = (Phase.PREFILL, capacity.source, prefill.confidence)
        sheet.put("disagg_engine_capacity_info", 1, engine, *known)
    if decode is not None:
        sheet.put("disagg_engine_decode_target_batch", decode.requests, engine)
        known = (Phase.DECODE, capacity.source, decode.confidence)
        sheet.put("disagg_engine_capacity_info", 1, engine, *known)
