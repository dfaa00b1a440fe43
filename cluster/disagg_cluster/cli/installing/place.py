"""Where an installation lies, for the commands that make it and take it away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from disagg_cluster.deploy.install.files import InstallPaths
    from disagg_cluster.deploy.install.plan import FileChange
    from disagg_cluster.deploy.install.service import SystemdService

_ROOT = Path("/")

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
    return f"{step.action.value:8} {step.path} ({step.why})"


def told_under(title: str, lines: Sequence[str]) -> list[str]:
    """Lines under a title of their own; nothing where there are none."""
    return ["", title, *(f"  {line}" for line in lines)] if lines else []
