"""What a snapshot says of engines, as rows."""

from __future__ import annotations

from disagg_exporter.metrics.rows.sheet import Sheet
from disagg_exporter.model import (
    EngineAccount,
    EnginePage,
    EngineStatus,
    Method,
    Phase,
    Role,
    Snapshot,
)

# In the order of `StepTotals`.
STEP_KINDS = ("context", "generation", "mixed", "dummy")


def write_engines(sheet: Sheet, snapshot: Snapshot) -> None:
    """Write each engine's facts, its GPU-seconds and tokens, and the load it stands under."""
    statuses = {status.engine: status for status in snapshot.engines}
    accounts = {account.engine: account for account in snapshot.engine_accounts}
    sheet.put("disagg_left_out_engines", snapshot.left_out_engines)
    for status in statuses.values():
        facts = (status.role, status.model_name, status.kind, status.version)
        sheet.put("disagg_engine_info", 1, status.engine, *facts)
        if status.follows is None and status.up is not None:
            sheet.put("disagg_engine_up", float(status.up), status.engine)
        if status.follows is not None:
            sheet.put("disagg_engine_follower_info", 1, status.engine, status.follows)
        sheet.put("disagg_engine_role_changes_total", status.role_changes, status.engine)
        if status.tls is not None:
            tls = status.tls
            sheet.put("disagg_engine_tls_info", 1, status.engine, tls.verified, tls.fault)
        if status.dynamo is not None:
            worker, registered = status.dynamo.worker, status.dynamo.registered
            ids = (worker, str(int(worker, 16)))
            sheet.put("disagg_engine_dynamo_worker_info", 1, status.engine, *ids)
            sheet.put("disagg_engine_registered", registered, status.engine)
    for account in accounts.values():
        _write_account(sheet, account, statuses.get(account.engine))
        if account.watermark_ns is not None:
            watermark = account.watermark_ns / 1e9 + snapshot.wall_offset_seconds
            sheet.put("disagg_engine_watermark_timestamp_seconds", watermark, account.engine)
    for engine in {**accounts, **statuses}:
        _write_load(sheet, accounts.get(engine), statuses.get(engine))


def _write_account(sheet: Sheet, account: EngineAccount, status: EngineStatus | None) -> None:
    engine = account.engine
    sheet.put("disagg_attribution_info", 1, engine, account.method, account.split)
    sheet.put("disagg_attribution_residual_ratio", account.residual_ratio, engine)
    sheet.put("disagg_attribution_fitted_steps", account.fitted_steps, engine)
    sheet.put("disagg_span_cut_seconds_total", account.cut_seconds, engine)
    sheet.put("disagg_late_records_total", account.late_records, engine)
    sheet.put("disagg_lost_records_total", account.lost_records, engine)
    for kind, steps, elapsed_ns in zip(
        STEP_KINDS, account.reported.steps, account.reported.elapsed_ns, strict=True
    ):
        sheet.put("disagg_engine_steps_total", steps, engine, account.role, kind)
        seconds = elapsed_ns / 1e9
        sheet.put("disagg_engine_step_seconds_total", seconds, engine, account.role, kind)
    # While an engine drains or starts its account has the role `none`; the rows of the role it
    # is for must stand at 0 before its first step.
    roles = dict.fromkeys((account.role, status.role if status else account.role))
    keys = [(role, phase) for role in roles if role is not Role.NONE for phase in Phase]
    where = (account.model_name, account.engine_namespace)
    for role, phase in dict.fromkeys((*keys, *account.gpu_seconds)):
        seconds = account.gpu_seconds.get((role, phase), 0.0)
        sheet.put("disagg_engine_gpu_seconds_total", seconds, engine, role, phase)
    for role, phase in dict.fromkeys((*keys, *account.phase_tokens)):
        tokens = account.phase_tokens.get((role, phase), 0)
        sheet.put("disagg_engine_phase_tokens_total", tokens, engine, role, phase)
        sheet.add("disagg_node_phase_tokens_total", 0, role, phase, *where)


def _write_load(sheet: Sheet, account: EngineAccount | None, status: EngineStatus | None) -> None:
    """Write requests and KV use: what the steps told, else what the metrics page tells."""
    known = account if account is not None and account.running is not None else None
    load: EngineAccount | EnginePage | None = known or (status.page if status else None)
    who = account or status
    if load is None or who is None:
        return
    engine, role = who.engine, who.role
    sheet.put("disagg_engine_requests", load.running, engine, role, "running")
    sheet.put("disagg_engine_requests", load.waiting, engine, role, "waiting")
    sheet.put("disagg_engine_requests", load.deferred, engine, role, "deferred")
    # FPM tells tokens of the cache, which are a share of it only where its size is known.
    page = status.page if status else None
    kv_usage_ratio = load.kv_usage_ratio
    if account is not None and account.method is Method.FPM:
        kv_usage_ratio = page.kv_usage_ratio if page else None
    sheet.put("disagg_engine_kv_cache_usage_ratio", kv_usage_ratio, engine, role)
