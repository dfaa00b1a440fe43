"""A comparison as a figure: the change of each measure with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disagg_cluster.planner.compare.comparison import Comparison, MeasuredChange, UnknownMeasure
from disagg_cluster.planner.compare.comparison_text import MEASURE_WORDS
from disagg_cluster.planner.compare.matching import UndecidedComparison
from disagg_cluster.planner.outlook.pictures import grid, save, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"better": "#1b9e77", "worse": "#d95f02", "no sure difference": "#888888"}


def draw_comparison(found: Comparison | UndecidedComparison, path: Path) -> None:
    """Write a figure: a line for each measure, with its change in percent and 90 % interval.

    Raises:
        PlotError: matplotlib is not installed.
        CannotWriteError: The file cannot be written.
    """
    figure, [[axes]] = grid(1, 1)
    if isinstance(found, UndecidedComparison):
        title(axes, "", f"undecided: {found.why}")
    else:
        _draw_measures(axes, found.measures)
    save(figure, path)


def _draw_measures(axes: Axes, measures: Sequence[MeasuredChange | UnknownMeasure]) -> None:
    for place, each in enumerate(measures):
        if isinstance(each, MeasuredChange):
            middle, low, high = (100 * ratio for ratio in (each.change_ratio, each.low, each.high))
            colour = _COLOURS[each.verdict]
            axes.plot([low, high], [place, place], color=colour, lw=2.0)
            axes.plot([middle], [place], color=colour, ls="", marker="o", ms=7)
            axes.annotate(each.verdict, (middle, place), (0, 8), textcoords="offset points")
        else:
            axes.annotate(f"undecided: {each.why}", (0.0, place))
    axes.set_yticks(range(len(measures)), [MEASURE_WORDS[each.name] for each in measures])
    axes.set_ylim(len(measures) - 0.5, -0.5)
    axes.axvline(0.0, color="#222222", lw=0.8)
    axes.set_xlabel("change in %, after against before at equal load, with 90 % interval")
