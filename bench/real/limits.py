"""Knees and target batches learned on curves of real GPUs, against the curves' own."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from bench.real.engines import WHEEL_GPUS, WHEEL_MODELS
from bench.real.measured import SHAPES, MeasuredSteps
from bench.real.wheel import WheelSteps

from disagg_cluster.simulator.engine.roofline import BatchWork, CostModel
from disagg_exporter.capacity.curves.curve import Curve
from disagg_exporter.capacity.curves.limits import KNEE_SHARE, find_batch, find_knee

NOISE_RATIO = 0.12
_STEPS = 3000
_LEAST_TOKENS, _MOST_TOKENS, _MEASURED_TOKENS = 16, 8192, 2048
_FINE = 1.05
_LONGER = 2.0
"""The longest prompts over the limit of a step, where the engine's limit cuts some."""


@dataclass(frozen=True, slots=True)
class KneeScore:
    """The tokens of a step at the knee: true, and learned from noisy steps (None: no knee).

    `cut` is whether some prompts were longer than a step may be, so that the limit was observed.
    """

    curve: str
    tokens: float
    learned: float | None
    cut: bool


def knees(*, with_wheel: bool) -> Iterator[KneeScore]:
    """Yield the knee of each curve, from prompts of all sizes up to one step and up to two."""
    curves: list[tuple[str, CostModel, int]] = [
        (f"{shape.name} on RTX PRO 6000", MeasuredSteps(shape), _MEASURED_TOKENS)
        for shape in SHAPES
    ]
    for model, gpus in WHEEL_MODELS if with_wheel else ():
        for gpu in WHEEL_GPUS:
            try:
                costs = WheelSteps(model, gpu, gpus)
            except Exception:  # noqa: BLE001 # any error of the wheel: its tables lack this curve
                continue
            curves.append((f"{model.split('/')[-1]} on {gpus} {gpu}", costs, _MOST_TOKENS))
    for name, costs, most in curves:
        for longest in (1.0, _LONGER):
            yield _knee(name, costs, most, longest * most)


def _knee(name: str, costs: CostModel, most: int, longest: float) -> KneeScore:
    sizes, size = [], float(_LEAST_TOKENS)
    while size < most:
        sizes.append(round(size))
        size *= _FINE
    rates = {n: n / _seconds(costs, n) for n in [*sizes, most]}
    true = next(n for n, rate in rates.items() if rate >= KNEE_SHARE * max(rates.values()))
    dice, curve = random.Random(name), Curve()
    for _ in range(_STEPS):
        prompt = _LEAST_TOKENS * (longest / _LEAST_TOKENS) ** dice.random()
        tokens = min(round(prompt), most)
        seconds = _seconds(costs, tokens) * max(dice.gauss(1, NOISE_RATIO), 0.1)
        curve.add(tokens, seconds, 1, full=tokens >= most)
    limit = find_knee(curve.points(1))
    return KneeScore(name, true, limit and limit.knee_tokens, longest > most)


def _seconds(costs: CostModel, tokens: int) -> float:
    return costs.price(BatchWork(tokens, tokens * (tokens + 1) // 2, tokens)).seconds


def batches(table: Path, seen_ratio: float) -> list[float]:
    """Return learned over true target batch, with each row's TPOT by batch as a target.

    Used are aggregated deployments of at least four batches; observed is the range from the
    smallest batch to `seen_ratio` of the true one, with at least two measured batches in it.
    """
    found = []
    for curve in _curves(table):
        sizes = np.array(sorted(curve))
        seconds = np.maximum.accumulate([median(curve[size]) for size in sizes])
        for number in range(2, len(sizes)):
            seen = sizes[sizes <= sizes[number] * seen_ratio]
            beyond = seen_ratio > 1
            known = seconds[len(seen) - 1] > seconds[number] if beyond else len(seen) > 1
            if not known or (not beyond and seconds[number] <= seconds[len(seen) - 1]):
                continue
            dice, points = random.Random(str(sizes)), Curve()
            for low, high in pairwise([*seen, seen[-1]]):
                for size in np.geomspace(low, high, 8, endpoint=high == low):
                    true = float(np.interp(size, sizes, seconds))
                    for _ in range(16):
                        points.add(float(size), true * max(dice.gauss(1, 0.05), 0.1), 1)
            limit = find_batch(points.points(1), float(seconds[number]))
            if limit is not None and limit.requests is not None:
                found.append(limit.requests / float(sizes[number]))
    return found


_SAME = (
    *("backend", "backend_version", "model_path", "system", "precision", "isl", "osl"),
    *("gemm_quant_mode", "moe_quant_mode", "tp_size", "pp_size", "attention_dp_size"),
    *("moe_tp_size", "moe_ep_size"),
)


def _curves(table: Path) -> Iterator[dict[float, list[float]]]:
    curves: dict[tuple[str, ...], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    with table.open(encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            if row["mode"] == "agg":
                curve = curves[tuple(row[name] for name in _SAME)]
                curve[float(row["batch_size"])].append(float(row["silicon_tpot_ms"]) / 1e3)
    yield from (curve for curve in curves.values() if len(curve) >= 4)
