"""Figures over time, drawn with matplotlib.

matplotlib is imported only when a figure is drawn: it takes 40 MB and half a second.
"""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from disagg_cluster.host.files.writable import writing
from disagg_exporter.errors import DisaggError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
MOST_ROWS = 12
"""Most rows of a figure, to keep it readable."""
COLOURS = {"prefill": "#1f77b4", "decode": "#d95f02", "mixed": "#7570b3"}
_DAY_SECONDS = 86_400.0
_LINE_CHARACTERS = 76
"""As many as fit above one of two plots in a row."""
_LEAST_TOP = 1e-6
"""Less than that is drawn as nothing, as tables show it."""


class PlotError(DisaggError):
    """Figures cannot be drawn here; the text says why and what to do."""


def require_matplotlib() -> None:
    """Raise `PlotError` if matplotlib is missing, before any data is read."""
    try:
        import matplotlib.figure  # noqa: F401 # only a check
    except ImportError as error:
        raise PlotError(
            f"--plot needs matplotlib ({error}): pip install 'disagg-node[plot]'"
        ) from error


def grid(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """Create an empty figure with so many rows and columns of plots."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.4 * rows + 0.6), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(row) for row in places]


def days(seconds: float) -> float:
    """Convert a Unix time to matplotlib's unit: days since 1970, UTC."""
    return seconds / _DAY_SECONDS


def time_axis(axes: Axes, unit: str) -> None:
    """Make time the horizontal axis, and label both axes."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call] # of matplotlib
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call] # too
    axes.xaxis.set_major_formatter(formatter)
    axes.set_ylim(bottom=0)
    if axes.get_ylim()[1] < _LEAST_TOP:
        axes.set_ylim(top=1.0)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_ylabel(unit)
    axes.set_xlabel("UTC")
    legend(axes)


def legend(axes: Axes) -> None:
    """Name what is drawn, where it covers least."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize=8, framealpha=0.8)


def title(axes: Axes, name: str, note: str = "") -> None:
    """Name a plot above it; `note` says below the name why something is not drawn."""
    lines = [line for part in (name, *note.splitlines()) for line in wrap(part, _LINE_CHARACTERS)]
    axes.set_title("\n".join(lines), fontsize=10, loc="left")


def save(figure: Figure, path: Path) -> None:
    """Write the figure, plots without content as their titles only.

    Raises:
        CannotWriteError: The file cannot be written.
    """
    for axes in figure.axes:
        if not axes.has_data():
            axes.set_axis_off()
    with writing(path):
        figure.savefig(path, dpi=120)
