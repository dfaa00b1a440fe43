"""Loads and their forecasts as a picture: bands over what was, a row for each model.

matplotlib is imported when a picture is drawn, and only then: it takes 40 MB and half a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.outlook.model_outlook import ModelOutlook, PhaseOutlook
from disagg_cluster.planner.outlook.wording import named
from disagg_exporter.errors import DisaggError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg")
MOST_MODELS = 12
"""More rows than these nobody reads in one picture."""
_COLOURS = {"prefill": "#1f77b4", "decode": "#d95f02"}
_PAST_PER_FUTURE = 2.0
_LEAST_PAST_SECONDS = 6 * 3600.0


class PlotError(DisaggError):
    """A picture that cannot be drawn; the text says why and the way out."""


def require_matplotlib() -> None:
    """Raise `PlotError` where pictures cannot be drawn, before anything is read for one."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise PlotError(
            f"--plot needs matplotlib ({error}): pip install 'disagg-node[plot]'"
        ) from error


def draw(outlooks: Sequence[ModelOutlook], path: Path) -> None:
    """Write a picture of the first `MOST_MODELS` outlooks.

    Raises:
        PlotError: matplotlib is not there, or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    shown = outlooks[:MOST_MODELS]
    figure = Figure(figsize=(13, 3.4 * len(shown) + 0.6), layout="constrained")
    axes = figure.subplots(len(shown), 2, squeeze=False)
    for row, outlook in zip(axes, shown, strict=True):
        for place, phase in zip(row, outlook.phases, strict=True):
            _draw_phase(place, phase)
            place.set_title(f"{phase.phase.value}: {named(outlook.key)}", fontsize=10, loc="left")
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise PlotError(f"cannot write {path}: {error.strerror}") from error


def _draw_phase(axes: Axes, phase: PhaseOutlook) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    colour = _COLOURS[phase.phase.value]
    series, made = phase.series, phase.forecast
    ahead_seconds = 0.0 if made is None else made.horizon_seconds
    past_seconds = max(_PAST_PER_FUTURE * ahead_seconds, _LEAST_PAST_SECONDS)
    steps = min(len(series.values), int(past_seconds / series.step_seconds))
    begin = series.end_seconds - steps * series.step_seconds
    was = series.values[len(series.values) - steps :]
    axes.plot(_days(begin, series.step_seconds, steps), was, color="#444444", lw=0.8, label="load")
    if made is None:
        why = next((getattr(each, "why", "") for each in phase.horizons), "")
        note = axes.set_title(f"undecided: {why}", fontsize=8, loc="center", y=0.85)
        note.set_wrap(True)
    else:
        times = _days(made.start_seconds, made.step_seconds, made.values.shape[1])
        pairs = [(i, len(made.quantiles) - 1 - i) for i in range(len(made.quantiles) // 2)]
        for low, high in pairs:
            band = f"{100 * made.quantiles[low]:g} to {100 * made.quantiles[high]:g} %"
            axes.fill_between(
                times,
                made.values[low],
                made.values[high],
                color=colour,
                alpha=0.2,
                label=band,
                lw=0,
            )
        middle = int(np.argmin(np.abs(np.asarray(made.quantiles) - 0.5)))
        axes.plot(times, made.values[middle], color=colour, lw=1.2, label="median")
        axes.axvline(float(times[0]), color="#888888", lw=0.8, ls=":")
    # The library has no types here.
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens/s")
    axes.set_xlabel("UTC")
    axes.legend(loc="upper left", fontsize=8, framealpha=0.8)


def _days(begin_seconds: float, step_seconds: float, steps: int) -> Floats:
    """Times as matplotlib counts them: days since 1970, UTC."""
    return (begin_seconds + step_seconds * np.arange(steps)) / 86_400
