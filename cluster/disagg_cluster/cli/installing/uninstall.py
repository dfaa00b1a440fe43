"""`disagg-node uninstall`: removes an installation."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.installing.place import (
    paths_of,
    root_option,
    service_of,
    step_line,
    summary_line,
    titled_lines,
)

if TYPE_CHECKING:
    from disagg_cluster.deploy.install.files import InstallPaths
    from disagg_cluster.deploy.install.plan import FileChange


@click.command
@click.option("--into", type=click.Path(path_type=Path, file_okay=False), help="Remove from DIR.")
@click.option("--system", is_flag=True, help="Remove what was installed with --system.")
@root_option
@click.option("--apply", is_flag=True, help="Remove; without it only the plan is printed.")
@click.option("--force", is_flag=True, help="Also remove changed files and the node file.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def uninstall(
    into: Path | None, system: bool, root: Path, apply: bool, force: bool, as_json: bool
) -> None:
    """Remove what `disagg-node install` has written; engines keep serving.

    Ends the daemon and its service, and removes unchanged files and the folders that are then
    empty. A changed file, such as the node file, is kept, unless with --force. Engines end only if
    the node file does not say `on_sigterm: leave`; those that keep running are listed, with the
    command that ends them.

    \b
      sudo disagg-node uninstall --system            # look at it
      sudo disagg-node uninstall --system --apply
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.deploy.install.files import after_removal
    from disagg_cluster.deploy.install.plan import (
        InstallError,
        read_manifest,
        read_texts,
        removal,
        remove_files,
    )

    paths = paths_of(into, root, system=system)
    written = paths.of_ours(read_manifest(paths.manifest, paths.root).files)
    if not written:
        raise InstallError(f"nothing is installed there: {paths.manifest} is not there")
    steps = removal(read_texts(map(Path, written)), written, force=force)
    done: list[str] = []
    engines: tuple[str, ...] = ()
    if apply:
        service = service_of(paths)
        has_unit = any(step.path == paths.unit for step in steps)
        done += service.end() if has_unit else ()
        engines = _left_engines(paths) if paths.is_here else ()
        remove_files(steps, paths.manifest, paths.own_folders, paths.root)
        done += service.forget() if has_unit else ()
    after = (*engines, *after_removal(paths, steps))
    if as_json:
        files = [{"path": str(s.path), "action": s.action.value, "why": s.why} for s in steps]
        value = {"applied": apply, "files": files, "done": done, "next": list(after)}
        click.echo(json.dumps(value, indent=2))
    else:
        click.echo(_as_text(steps, done, after, applied=apply))


def _left_engines(paths: InstallPaths) -> tuple[str, ...]:
    """Engines that keep running without a daemon, and the command to end them."""
    from disagg_cluster.daemon.stop import left_behind
    from disagg_cluster.host.run_dir.layout import RunFolder
    from disagg_cluster.nodefile import load
    from disagg_cluster.supervisor.ownership.run_folders import usual_run_dir
    from disagg_exporter.errors import DisaggError

    try:
        configured = load(paths.node_file).run_folder
    except DisaggError:
        # Without a usable node file the run folder is unknown.
        return ()
    folder = RunFolder(configured or usual_run_dir(os.environ, os.getuid()))
    left = left_behind(folder)
    if not left:
        return ()
    names = ", ".join(f"{entry.worker} (pid {entry.pid})" for entry in left)
    return (
        f"# {names}: still serving; this ends what is left of them:",
        f"disagg-node stop --workers --run-dir {folder.path}",
    )


def _as_text(
    steps: Sequence[FileChange], done: Sequence[str], after: Sequence[str], *, applied: bool
) -> str:
    from disagg_cluster.deploy.install.plan import Action

    removed = sum(step.action is Action.REMOVE for step in steps)
    lines = [step_line(step) for step in steps]
    lines += ["", summary_line(removed, steps, "removed" if applied else "would be removed")]
    if not applied:
        lines.append("Nothing was changed: --apply does it.")
    return "\n".join([*lines, *titled_lines("Done:", done), *titled_lines("Next:", after)])
