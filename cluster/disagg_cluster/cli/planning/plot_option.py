"""The option that makes a command also draw its result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from disagg_exporter.model.counted import counted

Command = Callable[..., Any]


def plot_option(drawn: str) -> Callable[[Command], Command]:
    """The option `--plot FILE`; `drawn` completes its help."""
    return click.option(
        "--plot",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=_checked,
        help=f"Also draw {drawn}: a .svg or .png file.",
    )


def _checked(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and not ctx.resilient_parsing:
        check_plot(path)
    return path


def check_plot(path: Path) -> None:
    """Reject, before anything is read, a plot that could not be written.

    Raises:
        UsageError: Not a plot file name, or its folder is missing.
        PlotError: matplotlib is missing.
        CannotWriteError: The file cannot be written.
    """
    from disagg_cluster.host.files.writable import check_writable
    from disagg_cluster.planner.outlook.pictures import FORMATS, require_matplotlib

    if path.suffix not in FORMATS:
        raise click.UsageError("--plot: a picture is a .svg or a .png file")
    if not path.parent.is_dir():
        raise click.UsageError(f"--plot: {path.parent} is no folder")
    require_matplotlib()
    check_writable(path)


def print_plot(path: Path, models: int) -> None:
    """Print where the plot was written, and how many models it leaves out."""
    from disagg_cluster.planner.outlook.pictures import MOST_ROWS

    if models > MOST_ROWS:
        left_out = counted(models - MOST_ROWS, "model")
        click.echo(f"{path} leaves out {left_out}; --model names one", err=True)
    click.echo(path, err=True)
