"""Loads and their forecasts as a figure: past load and bands, a row for each model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.outlook.model_outlook import ModelOutlook, PhaseOutlook
from disagg_cluster.planner.outlook.pictures import (
    COLOURS,
    MOST_ROWS,
    days,
    grid,
    save,
    time_axis,
    title,
)
from disagg_cluster.planner.outlook.wording import named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAST_PER_FUTURE = 2.0
_LEAST_PAST_SECONDS = 6 * 3600.0


def draw(outlooks: Sequence[ModelOutlook], path: Path) -> None:
    """Write a figure of the first `MOST_ROWS` outlooks.

    Raises:
        PlotError: matplotlib is not installed.
        CannotWriteError: The file cannot be written.
    """
    shown = outlooks[:MOST_ROWS]
    figure, axes = grid(len(shown), 2)
    for row, outlook in zip(axes, shown, strict=True):
        for place, phase in zip(row, outlook.phases, strict=True):
            note = _draw_phase(place, phase)
            title(place, f"{phase.phase.value}: {named(outlook.key)}", note)
    save(figure, path)


def _draw_phase(axes: Axes, phase: PhaseOutlook) -> str:
    """Draw the past load and the bands; return why there are none."""
    colour = COLOURS[phase.phase.value]
    series, made = phase.series, phase.forecast
    ahead_seconds = 0.0 if made is None else made.horizon_seconds
    past_seconds = max(_PAST_PER_FUTURE * ahead_seconds, _LEAST_PAST_SECONDS)
    steps = min(len(series.values), int(past_seconds / series.step_seconds))
    begin = series.end_seconds - steps * series.step_seconds
    past = series.values[len(series.values) - steps :]
    axes.plot(_days(begin, series.step_seconds, steps), past, color="#444444", lw=0.8, label="load")
    if made is not None:
        times = _days(made.start_seconds, made.step_seconds, made.values.shape[1])
        pairs = [(i, len(made.quantiles) - 1 - i) for i in range(len(made.quantiles) // 2)]
        for place, (low, high) in enumerate(pairs):
            band = f"{100 * made.quantiles[low]:g} to {100 * made.quantiles[high]:g} %"
            axes.fill_between(
                times,
                made.values[low],
                made.values[high],
                color=colour,
                alpha=0.2 + 0.2 * place,
                label=band,
                lw=0,
            )
        middle = int(np.argmin(np.abs(np.asarray(made.quantiles) - 0.5)))
        axes.plot(times, made.values[middle], color=colour, lw=1.2, label="median")
        axes.axvline(float(times[0]), color="#888888", lw=0.8, ls=":")
    time_axis(axes, "tokens/s")
    why = next((getattr(each, "why", "") for each in phase.horizons), "")
    return "" if made is not None else f"undecided: {why}"


def _days(begin_seconds: float, step_seconds: float, steps: int) -> Floats:
    return np.array([days(begin_seconds + step_seconds * step) for step in range(steps)])
