"""Plots the timed curves with the knee or the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from disagg_cluster.planner.outlook.pictures import COLOURS, grid, legend, save, title
from disagg_cluster.tune.decode_tuning import ContextTuning, DecodeTuning
from disagg_cluster.tune.prefill_tuning import LengthTuning, PrefillTuning
from disagg_exporter.capacity.curves.limits import KNEE_SHARE, enough
from disagg_exporter.capacity.curves.rates import rate_curve
from disagg_exporter.model.counted import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Row = TypeVar("_Row", LengthTuning, ContextTuning)


def draw_prefill(found: PrefillTuning, path: Path) -> None:
    """Write a plot of the rate over the tokens of a step, a row per prompt length.

    Raises:
        PlotError: matplotlib is missing.
        CannotWriteError: The file cannot be written.
    """
    rows = {f"prompts of {each.prompt_tokens} tokens": each for each in found.lengths}
    _draw_rows(rows, _draw_length, path)


def draw_decode(found: DecodeTuning, path: Path) -> None:
    """Write a plot of step time over the batch, a row per context length.

    Raises:
        PlotError: matplotlib is missing.
        CannotWriteError: The file cannot be written.
    """
    rows = {f"contexts of {each.context_tokens} tokens": each for each in found.contexts}
    _draw_rows(rows, _draw_context, path)


def _draw_rows(rows: Mapping[str, _Row], draw: Callable[[Axes, _Row], None], path: Path) -> None:
    figure, axes = grid(len(rows), 1)
    for (place,), (name, row) in zip(axes, rows.items(), strict=True):
        title(place, name, "" if row.points else "nothing was timed")
        if row.points:
            draw(place, row)
    save(figure, path)


def _draw_length(axes: Axes, length: LengthTuning) -> None:
    colour = COLOURS["prefill"]
    sizes = [point.size for point in length.points]
    rates = [point.size / point.seconds for point in length.points]
    axes.plot(sizes, rates, color=colour, ls="", marker="o", ms=5, label="timed")
    known = length.estimate
    if known is not None:
        curve = rate_curve(enough(length.points))
        axes.plot(curve.sizes, curve.rates, color=colour, lw=1.2, label="curve through all sizes")
        nine_tenths = KNEE_SHARE * known.best_tokens_per_second
        axes.axhline(nine_tenths, color="#888888", lw=0.8, ls="--", label="nine tenths of the best")
        if known.limit is not None and known.limit.knee_tokens is not None:
            axes.axvspan(known.low_tokens, known.high_tokens, color="#888888", alpha=0.2)
            label = f"knee: {known.knee_tokens:.0f} tokens"
            axes.axvline(known.knee_tokens, color="#222222", lw=1.0, label=label)
    _label(axes, "tokens of a step", "tokens/s")


def _draw_context(axes: Axes, context: ContextTuning) -> None:
    colour = COLOURS["decode"]
    sizes = [point.size for point in context.points]
    times = [1000 * point.seconds for point in context.points]
    axes.plot(sizes, times, color=colour, marker="o", ms=5, label="timed")
    target = 1000 * context.target_seconds
    axes.axhline(target, color="#888888", lw=0.8, ls="--", label=f"target: {target:g} ms")
    most = context.estimate.requests
    if most is not None:
        label = f"within the target: {counted(most, 'request')}"
        axes.axvline(most, color="#222222", lw=1.0, label=label)
    _label(axes, "requests of a batch", "ms from token to token")


def _label(axes: Axes, sizes: str, values: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(sizes)
    axes.set_ylabel(values)
    legend(axes)
