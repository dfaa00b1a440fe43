"""Rows of engines: facts, GPU-seconds and load; capacity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from disagg_exporter.capacity.compute_rates import peak_of
from disagg_exporter.metrics.device_rows import engine_namespaces, present_engines
from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.model import (
    Device,
    EngineAccount,
    EngineCapacity,
    EnginePage,
    EngineState,
    EngineStatus,
    Method,
    Phase,
    Role,
    Snapshot,
)
from disagg_exporter.model.reported_tokens import phases_with_tokens

# In the order of `StepTotals`.
STEP_KINDS = ("context", "generation", "mixed", "dummy")


def write_engines(rows: MetricRows, snapshot: Snapshot) -> None:
    """Write each engine's facts, its GPU-seconds and tokens, and its current load."""
    statuses = {status.engine: status for status in snapshot.engines}
    accounts = {account.engine: account for account in snapshot.engine_accounts}
    rows.set("disagg_left_out_engines", snapshot.left_out_engines)
    for status in statuses.values():
        facts = (status.role, status.model_name, status.kind, status.version)
        rows.set("disagg_engine_info", 1, status.engine, *facts)
        if status.follows is None and status.up is not None:
            rows.set("disagg_engine_up", float(status.up), status.engine)
        if status.follows is not None:
            rows.set("disagg_engine_follower_info", 1, status.engine, status.follows)
        rows.set("disagg_engine_role_changes_total", status.role_changes, status.engine)
        start = status.start_timestamp_seconds
        rows.set("disagg_engine_start_timestamp_seconds", start, status.engine)
        if status.tls is not None:
            tls = status.tls
            rows.set("disagg_engine_tls_info", 1, status.engine, tls.verified, tls.fault)
        if status.dynamo is not None:
            worker, registered = status.dynamo.worker, status.dynamo.registered
            ids = (worker, str(int(worker, 16)))
            rows.set("disagg_engine_dynamo_worker_info", 1, status.engine, *ids)
            rows.set("disagg_engine_registered", registered, status.engine)
    for account in accounts.values():
        _write_account(rows, account, statuses.get(account.engine))
        if account.watermark_ns is not None:
            watermark = account.watermark_ns / 1e9 + snapshot.wall_offset_seconds
            rows.set("disagg_engine_watermark_timestamp_seconds", watermark, account.engine)
        waited = account.unreported_step_seconds
        rows.set("disagg_engine_unreported_step_seconds", waited, account.engine)
    for engine in {**accounts, **statuses}:
        _write_load(rows, accounts.get(engine), statuses.get(engine))


def _write_account(rows: MetricRows, account: EngineAccount, status: EngineStatus | None) -> None:
    engine = account.engine
    how = (account.method, account.split, account.confidence)
    rows.set("disagg_attribution_info", 1, engine, *how)
    rows.set("disagg_attribution_residual_ratio", account.residual_ratio, engine)
    rows.set("disagg_attribution_share_error_ratio", account.share_error_ratio, engine)
    rows.set("disagg_attribution_fitted_steps", account.fitted_steps, engine)
    for step in account.reference_steps:
        rows.set("disagg_engine_step_cost_seconds", step.seconds, engine, step.point)
        rows.set("disagg_engine_step_cost_error_seconds", step.error_seconds, engine, step.point)
    if account.interference is not None:
        name, (loss, gain, total, error) = "disagg_engine_interference", account.interference
        rows.set(f"{name}_seconds_total", loss, engine, "loss")
        rows.set(f"{name}_seconds_total", gain, engine, "gain")
        rows.set(f"{name}_step_seconds_total", total, engine)
        rows.set(f"{name}_error_ratio", error, engine)
    rows.set("disagg_span_cut_seconds_total", account.cut_seconds, engine)
    rows.set("disagg_late_records_total", account.late_records, engine)
    rows.set("disagg_lost_records_total", account.lost_records, engine)
    if account.method.by_step or any(account.reported.steps):
        for kind, steps, elapsed_ns in zip(
            STEP_KINDS, account.reported.steps, account.reported.elapsed_ns, strict=True
        ):
            rows.set("disagg_engine_steps_total", steps, engine, account.role, kind)
            seconds = elapsed_ns / 1e9
            rows.set("disagg_engine_step_seconds_total", seconds, engine, account.role, kind)
    for kind, expected_ns, taken_ns in zip(STEP_KINDS, *account.expected_steps, strict=False):
        if taken_ns:
            by_kind = (engine, account.role, kind)
            rows.set("disagg_engine_expected_step_seconds_total", expected_ns / 1e9, *by_kind)
            rows.set("disagg_engine_compared_step_seconds_total", taken_ns / 1e9, *by_kind)
    # While an engine drains or starts, its account has the role `none`; the rows of its intended
    # role must exist at 0 before its first step.
    roles = dict.fromkeys((account.role, status.role if status else account.role))
    keys = [(role, phase) for role in roles if role is not Role.NONE for phase in Phase]
    where = (account.model_name, account.engine_namespace)
    for role, phase in dict.fromkeys((*keys, *account.gpu_seconds)):
        seconds = account.gpu_seconds.get((role, phase), 0.0)
        rows.set("disagg_engine_gpu_seconds_total", seconds, engine, role, phase)
    known = phases_with_tokens(account, status)
    for role, phase in dict.fromkeys((*keys, *account.phase_tokens)):
        tokens = account.phase_tokens.get((role, phase), 0)
        if tokens or phase in known:
            rows.set("disagg_engine_phase_tokens_total", tokens, engine, role, phase)
            rows.add("disagg_node_phase_tokens_total", 0, role, phase, *where)


def _write_load(
    rows: MetricRows, account: EngineAccount | None, status: EngineStatus | None
) -> None:
    """Write requests and KV use: from the steps if they report them, else from the metrics page."""
    known = account if account is not None and account.running is not None else None
    load: EngineAccount | EnginePage | None = known or (status.page if status else None)
    who = account or status
    if load is None or who is None:
        return
    engine, role = who.engine, who.role
    rows.set("disagg_engine_requests", load.running, engine, role, "running")
    rows.set("disagg_engine_requests", load.waiting, engine, role, "waiting")
    rows.set("disagg_engine_requests", load.deferred, engine, role, "deferred")
    # FPM reports tokens of the cache, which give a share only where its size is known.
    page = status.page if status else None
    kv_usage_ratio = load.kv_usage_ratio
    if account is not None and account.method is Method.FPM:
        kv_usage_ratio = page.kv_usage_ratio if page else None
    rows.set("disagg_engine_kv_cache_usage_ratio", kv_usage_ratio, engine, role)


def write_capacity(rows: MetricRows, snapshot: Snapshot) -> None:
    """Write the capacity in use, and the limits behind it."""
    capacities = {capacity.engine: capacity for capacity in snapshot.capacities}
    for capacity in capacities.values():
        _write_limits(rows, capacity)
    for share in snapshot.gpu_shares:
        rows.set("disagg_engine_gpu_sm_ratio", share.sm_ratio, share.engine, share.gpu)
    devices = {device.gpu: device for device in snapshot.devices}
    namespaces = engine_namespaces(snapshot)
    ready = [e for e in present_engines(snapshot) if e.state is EngineState.READY]
    sharers = Counter(gpu for engine in ready for gpu in engine.devices)
    for engine in ready:
        if engine.engine in capacities:
            on = [devices[gpu] for gpu in engine.devices if gpu in devices]
            _write_efficiency(rows, capacities[engine.engine], engine.role, on)
        known = capacities.get(engine.engine)
        if known is None or known.used_ratio is None:
            continue
        used = known.used_ratio
        rows.set("disagg_engine_capacity_used_ratio", used, engine.engine, engine.role)
        for device in (devices[gpu] for gpu in engine.devices if gpu in devices):
            # A GPU shared by two engines counts half for each.
            gpus = device.weight / sharers[device.gpu]
            namespace = namespaces.get(engine.engine, "")
            key = (engine.role, engine.model_name, device.gpu_name, namespace)
            rows.add("disagg_node_capacity_used_gpus", used * gpus, *key)
            rows.add("disagg_node_capacity_known_gpus", gpus, *key)


def _write_efficiency(
    rows: MetricRows, capacity: EngineCapacity, role: Role, devices: Sequence[Device]
) -> None:
    peaks = [peak for d in devices if (peak := peak_of(d.gpu_name, d.weight)) is not None]
    if not peaks or len(peaks) < len(devices) or capacity.flops_per_second is None:
        return
    engine = capacity.engine
    flops = sum(peak.flops_per_second for peak in peaks)
    rows.set("disagg_engine_peak_flops_per_second", flops, engine)
    ratio = capacity.flops_per_second / flops
    rows.set("disagg_engine_model_flops_ratio", ratio, engine, role)
    if capacity.bytes_per_second is not None:
        most = sum(peak.bytes_per_second for peak in peaks)
        rows.set("disagg_engine_peak_bytes_per_second", most, engine)
        ratio = capacity.bytes_per_second / most
        rows.set("disagg_engine_model_bandwidth_ratio", ratio, engine, role)


def _write_limits(rows: MetricRows, capacity: EngineCapacity) -> None:
    engine, prefill, decode = capacity.engine, capacity.prefill, capacity.decode
    most_tokens, most_requests = capacity.configured
    rows.set("disagg_engine_max_num_batched_tokens", most_tokens, engine)
    rows.set("disagg_engine_max_num_seqs", most_requests, engine)
    rows.set("disagg_engine_bound_info", 1, engine, capacity.bottleneck)
    for tokens, rate in capacity.prefill_curve:
        rows.set("disagg_engine_prefill_curve_tokens_per_second", rate, engine, str(tokens))
    for batch, seconds in capacity.decode_curve:
        rows.set("disagg_engine_decode_curve_seconds", seconds, engine, str(batch))
    if prefill is not None:
        rows.set("disagg_engine_prefill_knee_tokens", prefill.knee_tokens, engine)
        rate = prefill.tokens_per_second
        rows.set("disagg_engine_prefill_knee_tokens_per_second", rate, engine)
        known = (Phase.PREFILL, capacity.source, prefill.confidence)
        rows.set("disagg_engine_capacity_info", 1, engine, *known)
    if decode is not None:
        rows.set("disagg_engine_decode_target_batch", decode.requests, engine)
        known = (Phase.DECODE, capacity.source, decode.confidence)
        rows.set("disagg_engine_capacity_info", 1, engine, *known)
