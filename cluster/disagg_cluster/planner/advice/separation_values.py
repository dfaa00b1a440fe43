"""The gain of separating or merging as values for JSON: stable names with units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from disagg_cluster.host.spans import timestamp
from disagg_cluster.planner.advice.separation_advice import GpuSeparation, ModelSeparation
from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.planner.outlook.values import Value, key_value
from disagg_cluster.planner.separation.verdict import Advice, SeparationVerdict, UndecidedSeparation


def separation_value(models: Sequence[ModelSeparation], now_seconds: float) -> Value:
    """The values of all models."""
    return {"made_at": timestamp(now_seconds), "models": [_model(each) for each in models]}


def _model(model: ModelSeparation) -> Value:
    load = model.load
    return {
        **key_value(model.key),
        "load": None
        if load is None
        else {**asdict(load.mix), "peak_requests_per_second": load.peak_requests_per_second},
        "targets": asdict(model.targets),
        "answers": [answer_value(model, each) for each in model.answers],
    }


def answer_value(model: ModelSeparation, answer: GpuSeparation) -> Value:
    """One answer about a model."""
    verdict = answer.verdict
    asked = {"today": answer.today.value, "gpu_name": answer.gpu_name, "gpus": answer.gpus}
    if isinstance(verdict, UndecidedSeparation):
        return {**asked, "verdict": Advice.UNDECIDED.value, "missing": list(verdict.missing)}
    return {
        **asked,
        "verdict": verdict.advice.value,
        "gain": {name: _finite(value) for name, value in asdict(verdict.gain).items()},
        **_sides(model, verdict),
        "interference_gain_ratio": verdict.interference_gain,
        "reasons": list(verdict.reasons),
    }


def _sides(model: ModelSeparation, verdict: SeparationVerdict) -> Value:
    mixed, split = verdict.mixed, verdict.split
    return {
        "mixed": {
            **_pool(mixed.engines, mixed.shape),
            "requests_per_second": mixed.requests_per_second,
            "bound": mixed.bound,
            "holds_load": model.holds(mixed.requests_per_second),
        },
        "separate": {
            "prefill": _pool(split.prefill_engines, split.prefill),
            "decode": _pool(split.decode_engines, split.decode),
            "requests_per_second": split.requests_per_second,
            "limited_by": split.limited_by,
            "bound": split.bound,
            "holds_load": model.holds(split.requests_per_second),
            "kv_transfer_seconds": split.transfer_seconds,
            "granularity_loss_ratio": split.granularity_loss,
        },
    }


def _pool(engines: int, shape: EngineShape) -> dict[str, object]:
    return {"engines": engines, "gpus_per_engine": shape.gpus, "gpu_name": shape.gpu_name}


def _finite(value: float) -> float | None:
    """None for infinity, which JSON lacks: one way meets the targets at no load at all."""
    return value if math.isfinite(value) else None
