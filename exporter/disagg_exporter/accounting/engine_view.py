"""Engines' accounts as the metrics page shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.engine_account import EngineLedger
from disagg_exporter.accounting.rank_costs import CostKnowledge
from disagg_exporter.accounting.timelines.step_timeline import StepTimeline
from disagg_exporter.accounting.timelines.window_timeline import EngineTimeline, WindowTimeline
from disagg_exporter.model import (
    SECOND_NS,
    SLICE_NS_PER_GPU_SECOND,
    EngineAccount,
    Interference,
    Method,
)


def shown_accounts(
    engines: Mapping[str, EngineLedger], devices: Mapping[str, DeviceLedger], now_ns: int
) -> tuple[EngineAccount, ...]:
    """Return what every engine has used, and the state in its last record."""
    cut_ns: Counter[str] = Counter()
    for device in devices.values():
        cut_ns.update(device.carry_over.cut_ns)
    accounts: list[EngineAccount] = []
    for name, engine in engines.items():
        own = [devices[gpu] for gpu in engine.assignment.devices if gpu in devices]
        accounts.append(_shown(engine, now_ns, own, cut_ns[name]))
    return tuple(accounts)


def _shown(
    engine: EngineLedger, now_ns: int, devices: Sequence[DeviceLedger], cut_ns: int
) -> EngineAccount:
    """Return an engine's sums as shown; `cut_ns` is the time cut on devices that exist."""
    assignment = engine.assignment
    live = {rank: each for rank, each in engine.timelines.items() if each.is_live(now_ns)}
    known = _cost_knowledge(engine, live)
    windows = [each.last_window for each in live.values() if isinstance(each, WindowTimeline)]
    last = [each.last_step for each in live.values() if each.last_step is not None]
    deferred_ns = sum(each.carry_over.deferred_ns(assignment.engine) for each in devices)
    return EngineAccount(
        engine=assignment.engine,
        role=assignment.role,
        model_name=assignment.model_name,
        engine_namespace=assignment.engine_namespace,
        watermark_ns=min((each.mark_ns for each in engine.timelines.values()), default=None),
        method=engine.method if live else Method.NONE,
        gpu_seconds={key: ns / SLICE_NS_PER_GPU_SECOND for key, ns in engine.gpu_slice_ns.items()},
        phase_tokens=dict(engine.tokens),
        reported=engine.reported.totals,
        cut_seconds=(engine.cut_ns + cut_ns) / SECOND_NS,
        carry_over_seconds=deferred_ns / SECOND_NS,
        lost_records=engine.lost_records,
        late_records=engine.late_records,
        running=sum(step.running for step in last) if last else None,
        waiting=sum(step.waiting for step in last) if last else None,
        deferred=sum(step.deferred for step in last) if last else None,
        kv_usage_ratio=max(
            (step.kv_usage_ratio for step in last if step.kv_usage_ratio is not None), default=None
        ),
        split=known.split,
        residual_ratio=known.residual_ratio,
        fitted_steps=known.fitted_steps,
        share_error_ratio=known.share_error_ratio,
        expected_steps=engine.expected,
        interference=_interference(engine, known.interference_error_ratio),
        reference_steps=known.reference_steps,
        unreported_step_seconds=_unreported_seconds(live.values(), now_ns),
        cut_prompts=any(window is not None and window.cut_prompts for window in windows),
        shares_devices=any(len(each.engines()) > 1 for each in devices),
    )


def _interference(engine: EngineLedger, error_ratio: float | None) -> Interference | None:
    if error_ratio is None:
        return None
    return Interference(
        engine.loss_ns / SECOND_NS,
        engine.gain_ns / SECOND_NS,
        engine.known_ns / SECOND_NS,
        error_ratio,
    )


def _cost_knowledge(engine: EngineLedger, live: Mapping[int, EngineTimeline]) -> CostKnowledge:
    for timeline in live.values():
        if isinstance(timeline, WindowTimeline) and timeline.last_window is not None:
            window = timeline.last_window
            return CostKnowledge(window.split, window.residual_ratio, window.fitted)
    return engine.costs.known(list(live))


def _unreported_seconds(timelines: Iterable[EngineTimeline], now_ns: int) -> float | None:
    """Return how long time has waited for an unrecorded step; None without step timelines."""
    ranks = [each for each in timelines if isinstance(each, StepTimeline)]
    # No step is awaited in time that the previous daemon finalized.
    since_ns = [
        max(each.committing_ns, each.mark_ns) for each in ranks if each.work_pending or each.awaited
    ]
    return (now_ns - min(since_ns, default=now_ns)) / SECOND_NS if ranks else None
