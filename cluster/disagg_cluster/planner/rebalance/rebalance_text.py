"""Rebalance advice as text and as JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from disagg_cluster.planner.outlook.horizons import duration
from disagg_cluster.planner.outlook.wording import clock
from disagg_cluster.planner.rebalance.decision import Move
from disagg_cluster.planner.rebalance.limits import RebalanceLimits, RebalanceMode
from disagg_cluster.planner.rebalance.model_rebalance import ModelRebalance
from disagg_cluster.planner.rebalance.pool_worker import PoolWorker
from disagg_cluster.planner.rebalance.shadow import ShadowAccounting
from disagg_exporter.errors import escaped, escaped_lines
from disagg_exporter.model.counted import counted

_MINUTE_SECONDS = 60.0


def rebalance_text(
    models: Sequence[ModelRebalance], limits: RebalanceLimits, mode: RebalanceMode
) -> str:
    """One paragraph per model, or why there is none."""
    if not models:
        return (
            "no model has both a prefill and a decode pool; where Prometheus knows no engines, "
            "`workers:` of the planner file names them"
        )
    return escaped_lines("\n".join(line for each in models for line in _lines(each, limits, mode)))


def _lines(model: ModelRebalance, limits: RebalanceLimits, mode: RebalanceMode) -> Iterator[str]:
    whose = "/".join(filter(None, (model.engine_namespace, model.model_name)))
    named = escaped(whose) or "all requests"
    now = "" if model.split is None else f" at {model.split}"
    if not isinstance(model.advice, Move):
        yield f"{named}: stay{now}: {model.advice.reason}"
    else:
        gain = model.advice.gain
        engine = f"a {model.advice.role} engine" if model.worker is None else _worker(model.worker)
        yield f"{named}: move {engine} from {model.advice.role} to {model.advice.to_role}"
        if model.advice.undoes:
            yield (
                "  the last move is taken back: as measured "
                f"{model.advice.to_role} is short without it, and {model.advice.role} has room"
            )
        yield (
            f"  {counted(gain.moves, 'move')} to {gain.to}, now {model.split}: over the next "
            f"{duration(limits.horizon_seconds)} {_minutes(gain.over_target_seconds)} less over "
            f"target, {gain.engine_seconds / _MINUTE_SECONDS:.0f} engine-minutes missed less"
        )
        known = "as moves took here" if model.cost.measured else "assumed: drain and lead time"
        yield f"  its engine serves no requests for {model.cost.downtime_seconds:.0f} s ({known})"
        if not model.measured:
            yield "  how full both pools are is not measured: without that act moves nothing"
    if model.accounting is not None:
        yield f"  {_accounting_text(model.accounting, mode)}"


def _worker(worker: PoolWorker) -> str:
    text = escaped(f"{worker.worker} on {worker.node}")
    if worker.requests is not None:
        text += f" ({counted(round(worker.requests), 'request')})"
    return text if worker.supervised else f"{text}, which no daemon of ours started,"


def _accounting_text(accounting: ShadowAccounting, mode: RebalanceMode) -> str:
    since = f"since {clock(accounting.since_seconds)} UTC"
    gained = accounting.gained_seconds
    if mode is RebalanceMode.ACT:
        text = f"{-gained / _MINUTE_SECONDS:+.0f} min in target without any move"
        return f"{since}: {text}"
    text = f"{gained / _MINUTE_SECONDS:+.0f} min in target had advice been followed"
    return f"{since}: {text}, {counted(accounting.moves, 'move')}"


def _minutes(seconds: float) -> str:
    return f"{seconds / _MINUTE_SECONDS:.1f} min"


def rebalance_values(
    models: Sequence[ModelRebalance], limits: RebalanceLimits
) -> list[Mapping[str, object]]:
    """The advice as JSON values: units in the names, null where unknown."""
    return [_value(each, limits) for each in models]


def _value(model: ModelRebalance, limits: RebalanceLimits) -> Mapping[str, object]:
    moving = isinstance(model.advice, Move)
    found: dict[str, object] = {
        "model_name": model.model_name,
        "engine_namespace": model.engine_namespace,
        "advice": "move" if moving else "stay",
        "split": None
        if model.split is None
        else {"prefill": model.split.prefill, "decode": model.split.decode},
        "downtime_seconds": model.cost.downtime_seconds,
        "downtime_measured": model.cost.measured,
    }
    if not isinstance(model.advice, Move):
        return {**found, "reason": model.advice.reason}
    gain, worker = model.advice.gain, model.worker
    return {
        **found,
        "node": None if worker is None else worker.node,
        "worker": None if worker is None else worker.worker,
        "capacity_used_measured": model.measured,
        "supervised": None if worker is None else worker.supervised,
        "role": model.advice.role.value,
        "to_role": model.advice.to_role.value,
        "takes_back": model.advice.undoes,
        "moves": gain.moves,
        "to_split": {"prefill": gain.to.prefill, "decode": gain.to.decode},
        "horizon_seconds": limits.horizon_seconds,
        "over_target_seconds_less": gain.over_target_seconds,
        "engine_seconds_missed_less": gain.engine_seconds,
    }
