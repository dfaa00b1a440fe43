"""The location of an installation, for `install` and `uninstall`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_exporter.model.counted import counted

if TYPE_CHECKING:
    from disagg_cluster.deploy.install.files import InstallPaths
    from disagg_cluster.deploy.install.plan import FileChange
    from disagg_cluster.deploy.install.service import SystemdService

_ROOT = Path("/")
_COLOURS = {
    "create": "green",
    "update": "green",
    "replace": "yellow",
    "keep": "yellow",
    "left": "yellow",
    "remove": "red",
}
_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}

root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=_ROOT,
    help="With --system: a folder to use as /, for images; services are not touched then.",
)


def paths_of(into: Path | None, root: Path, *, system: bool) -> InstallPaths:
    """The paths of an installation.

    Raises:
        UsageError: The location is given twice or not at all.
    """
    from disagg_cluster.deploy.install.files import below, on_system

    if (into is None) != system:
        raise click.UsageError("say where: either --into DIR or --system")
    if into is not None and root != _ROOT:
        raise click.UsageError("--root is for --system")
    return on_system(root.absolute()) if into is None else below(into.absolute())


def service_of(paths: InstallPaths) -> SystemdService:
    """The service of an installation; one that does nothing if it cannot run here."""
    from disagg_cluster.deploy.install.service import SystemdService

    if not paths.system or not paths.is_here:
        return SystemdService(None)
    return SystemdService.of_this_system(lambda command: click.echo(f"{command} …", err=True))


def step_line(step: FileChange) -> str:
    """A line about what happens to a file."""
    action = step.action.value
    return f"{_coloured(f'{action:8}', _COLOURS.get(action))} {step.path} ({step.why})"


def diff_lines(step: FileChange) -> list[str]:
    """The diff of a file in `git diff` colours."""
    return [
        f"    {_coloured(line, _DIFF_COLOURS.get(line[:1]))}" for line in step.diff.splitlines()
    ]


def summary_line(changed: int, steps: Sequence[FileChange], did: str) -> str:
    """Summary of how many files are changed, and how many kept against the plan."""
    kept = sum(step.action.value == "keep" for step in steps)
    were = "it was" if kept == 1 else "they were"
    rest = f", {kept} kept as {were} changed" if kept else ""
    return f"{changed} of {counted(len(steps), 'file')} {did}{rest}."


def titled_lines(title: str, lines: Sequence[str]) -> list[str]:
    """Lines under a title; nothing if there are none."""
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _coloured(text: str, colour: str | None) -> str:
    return click.style(text, fg=colour) if colour else text
