"""Where an installation lies, for the commands that make it and take it away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.host.counted import counted

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
    help="With --system as if DIR were /, for images; no service is touched then.",
)


def paths_of(into: Path | None, root: Path, *, system: bool) -> InstallPaths:
    """Where everything lies.

    Raises:
        UsageError: It is said twice, or not at all.
    """
    from disagg_cluster.deploy.install.files import below, on_system

    if (into is None) != system:
        raise click.UsageError("say where: either --into DIR or --system")
    if into is not None and root != _ROOT:
        raise click.UsageError("--root is for --system")
    return on_system(root.absolute()) if into is None else below(into.absolute())


def service_of(paths: InstallPaths, root: Path) -> SystemdService:
    """The service that runs from there; one that does nothing where none can."""
    from disagg_cluster.deploy.install.service import SystemdService

    if not paths.system or not is_here(root):
        return SystemdService(None)
    return SystemdService.of_this_system(lambda command: click.echo(f"{command} …", err=True))


def is_here(root: Path) -> bool:
    """Whether what runs on this machine is what runs from there."""
    return root == _ROOT


def told_step(step: FileChange) -> str:
    """What becomes of a file, in one line."""
    action = step.action.value
    return f"{_coloured(f'{action:8}', _COLOURS.get(action))} {step.path} ({step.why})"


def told_diff(step: FileChange) -> list[str]:
    """How a file differs, as `git diff` colours it."""
    return [
        f"    {_coloured(line, _DIFF_COLOURS.get(line[:1]))}" for line in step.diff.splitlines()
    ]


def told_sum(changed: int, steps: Sequence[FileChange], did: str) -> str:
    """How many files are changed, and how many are kept though they should be."""
    kept = sum(step.action.value == "keep" for step in steps)
    whose = "it" if kept == 1 else "them"
    rest = f", {kept} kept as somebody changed {whose}" if kept else ""
    return f"{changed} of {counted(len(steps), 'file')} {did}{rest}."


def told_under(title: str, lines: Sequence[str]) -> list[str]:
    """Lines under a title of their own; nothing where there are none."""
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _coloured(text: str, colour: str | None) -> str:
    return click.style(text, fg=colour) if colour else text
