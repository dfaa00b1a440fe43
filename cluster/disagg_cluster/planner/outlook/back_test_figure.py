"""A back-test as a figure: forecast error by horizon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disagg_cluster.planner.history.load_history import LoadKey
from disagg_cluster.planner.outlook.back_test import HorizonScore
from disagg_cluster.planner.outlook.horizons import duration
from disagg_cluster.planner.outlook.pictures import COLOURS, MOST_ROWS, grid, legend, save, title
from disagg_cluster.planner.outlook.wording import Scores, named
from disagg_exporter.model import Phase

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Tested = tuple[LoadKey, Sequence[tuple[Phase, Scores]]]


def draw_back_test(models: Sequence[Tested], path: Path) -> None:
    """Write a figure of the first `MOST_ROWS` models, with a column per phase.

    Raises:
        PlotError: matplotlib is not installed.
        CannotWriteError: The file cannot be written.
    """
    shown = models[:MOST_ROWS]
    figure, axes = grid(len(shown), 2)
    for row, (key, phases) in zip(axes, shown, strict=True):
        for place, (phase, scores) in zip(row, phases, strict=True):
            title(place, f"{phase.value}: {named(key)}", _draw_phase(place, phase, scores))
    save(figure, path)


def _draw_phase(axes: Axes, phase: Phase, scores: Scores) -> str:
    """Draw the errors; return why there are none."""
    decided = [each for each in scores if isinstance(each, HorizonScore)]
    if not decided:
        return f"undecided: {getattr(scores[0], 'why', '')}" if scores else "no horizon"
    ends = [duration(each.horizon_seconds) for each in decided]
    lines = (
        ("error", [each.error_ratio for each in decided], COLOURS[phase.value], "-"),
        (
            "last value's error",
            [each.last_value_error_ratio for each in decided],
            "#888888",
            "--",
        ),
        (
            "out of the band",
            [1 - each.covered_ratio for each in decided],
            "#222222",
            ":",
        ),
    )
    for label, ratios, colour, style in lines:
        known = [float("nan") if each is None else 100 * each for each in ratios]
        axes.plot(ends, known, marker="o", ms=4, lw=1.2, label=label, color=colour, ls=style)
    should = 100 * (1 - decided[0].band)
    axes.axhline(should, color="#222222", lw=0.6, alpha=0.4, label=f"should be out: {should:.0f} %")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("horizon")
    axes.set_ylabel("% of the load; % of the time")
    legend(axes)
    return ""
