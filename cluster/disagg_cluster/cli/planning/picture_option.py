"""The option by which a command also draws what it prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]


def plot_option(drawn: str) -> Callable[[Command], Command]:
    """The option `--plot FILE`, whose help says what is drawn."""
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
    """Refuse, before anything is read, a picture that could not be written.

    Raises:
        UsageError: Not the name of a picture, or in no folder.
        PlotError: There is nothing to draw with, or the file cannot be written.
    """
    from disagg_cluster.planner.outlook.pictures import FORMATS, check_picture, require_matplotlib

    if path.suffix not in FORMATS:
        raise click.UsageError("--plot: a picture is a .svg or a .png file")
    if not path.parent.is_dir():
        raise click.UsageError(f"--plot: {path.parent} is no folder")
    require_matplotlib()
    check_picture(path)


def tell_picture(path: Path, models: int) -> None:
    """Say where a picture of so many models was written, and how many it leaves out."""
    from disagg_cluster.planner.outlook.pictures import MOST_ROWS

    if models > MOST_ROWS:
        click.echo(f"{path} leaves out {models - MOST_ROWS} models; --model names one", err=True)
    click.echo(path, err=True)
