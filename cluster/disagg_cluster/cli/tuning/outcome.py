"""What happens with a tuning result: printed, drawn, saved as a profile, written to a node file."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from disagg_cluster.cli.planning.plot_option import plot_option
from disagg_cluster.cli.tuning.target import TargetOptions
from disagg_exporter.errors import DisaggError

if TYPE_CHECKING:
    from disagg_cluster.config import Worker
    from disagg_cluster.nodefile import NodeFile
    from disagg_cluster.planner.capacity.learned.tune_profile import TuneProfile

STEP_TOKENS = {"vllm": "--max-num-batched-tokens", "sglang": "--chunked-prefill-size"}
REQUESTS = {"vllm": "--max-num-seqs", "sglang": "--max-running-requests"}
"""The limit option of each engine kind."""


class NothingToSetError(DisaggError):
    """There is no recommendation to write."""


@dataclass(frozen=True, slots=True)
class OutcomeOptions:
    """Outputs of the result besides standard output."""

    as_json: bool
    plot: Path | None
    profile: Path | None
    node_file: Path | None

    def check(self, target: TargetOptions, model: str, url: str) -> None:
        """Reject, before anything is probed, outputs that could not be written afterwards.

        Raises:
            UsageError: The folder of a file is missing.
            ConfigError: The node file, or an existing profile, has problems.
            ProfileMismatchError: The profile is of another model.
            ArgumentEditError: The node file has no such worker, or its engine has no such
                arguments.
            CannotWriteError: A file cannot be written.
        """
        from disagg_cluster.host.files.atomic_write import check_replaceable
        from disagg_cluster.host.files.writable import writing
        from disagg_cluster.nodefile import read
        from disagg_cluster.nodefile.argument_edit import ArgumentEditError
        from disagg_cluster.planner.capacity.learned.tune_profile import merged, read_profile

        if self.profile is not None:
            if not self.profile.parent.is_dir():
                raise click.UsageError(f"--profile: {self.profile.parent} is no folder")
            with writing(self.profile):
                check_replaceable(self.profile.resolve())
            if self.profile.exists():
                old = read_profile(self.profile)
                merged(old, old.model_copy(update={"model_name": model}))
        if self.node_file is not None:
            worker = _probed_worker(read(self.node_file), target, url)
            if worker.engine not in REQUESTS:
                raise ArgumentEditError(
                    f"{worker.name} is a {worker.engine}, which has no such arguments"
                )
            with writing(self.node_file):
                check_replaceable(self.node_file.resolve())

    def keep(
        self,
        found: TuneProfile,
        draw: Callable[[Path], None],
        limits: Mapping[str, Mapping[str, int]],
        target: TargetOptions,
        url: str,
    ) -> None:
        """Write the requested outputs.

        Args:
            found: The tuning result.
            draw: Draws it.
            limits: The recommended limits, by engine kind and option.
            target: The tuned engine.
            url: Its address.

        Raises:
            CannotWriteError: A file could not be written.
            NothingToSetError: There is nothing to write into the node file.
            ArgumentEditError: The node file cannot be changed this way.
        """
        from disagg_cluster.planner.capacity.learned.tune_profile import merged, read_profile
        from disagg_cluster.tune.profile_values import profile_value

        # The measurements are saved first, so that a later failure does not require new probes.
        if self.profile is not None:
            whole = merged(read_profile(self.profile), found) if self.profile.exists() else found
            _write(self.profile, json.dumps(profile_value(whole), indent=1, allow_nan=False) + "\n")
            click.echo(self.profile, err=True)
        if self.plot is not None:
            draw(self.plot)
            click.echo(self.plot, err=True)
        if self.node_file is not None:
            _write_arguments(self.node_file, limits, target, url)


def _write_arguments(
    file: Path, limits: Mapping[str, Mapping[str, int]], target: TargetOptions, url: str
) -> None:
    import difflib

    from disagg_cluster.nodefile import parse, read
    from disagg_cluster.nodefile.argument_edit import with_arguments

    worker = _probed_worker(read(file), target, url)
    wanted = _allowed(worker, limits[worker.engine])
    if not wanted:
        raise NothingToSetError(f"nothing is recommended, so {file} stays as it is")
    before = file.read_bytes().decode("utf-8")
    after = with_arguments(before, worker.name, {k: str(v) for k, v in wanted.items()})
    # A file that no daemon would accept is not written.
    parse(after, str(file), folder=file.absolute().parent)
    if after == before:
        click.echo(f"{file}: {worker.name} has it so already", err=True)
        return
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), str(file), str(file)
    )
    click.echo("".join(lines), err=True, nl=False)
    _write(file, after)
    click.echo(
        "written. `disagg-node reload` has the daemon take it in, and `disagg-node restart "
        f"{worker.name}` starts the worker with it",
        err=True,
    )


def _allowed(worker: Worker, wanted: Mapping[str, int]) -> dict[str, int]:
    """The recommended limits, adjusted to the engine's other arguments."""
    from disagg_exporter.roles.command_line.flags import read_flags

    flags, found = read_flags(worker.arguments), dict(wanted)
    step, most = STEP_TOKENS["vllm"], REQUESTS["vllm"]
    if worker.engine != "vllm":
        return found
    if step in found and flags.has("no-enable-chunked-prefill"):
        longest = flags.value("max-model-len") or ""
        if not longest.isdecimal() or int(longest) > found[step]:
            raise NothingToSetError(
                f"{worker.name} runs with --no-enable-chunked-prefill, and does not start with a "
                f"{step} of {found[step]}, below the longest request (--max-model-len): without "
                "chunks a step holds a whole prompt. The node file stays as it is"
            )
    set_to = flags.value(most.lstrip("-")) or ""
    if step in found and set_to.isdecimal() and int(set_to) > found[step]:
        click.echo(
            f"{step} is no less than {most}, which is {set_to}: vLLM does not start otherwise",
            err=True,
        )
        found[step] = int(set_to)
    set_to = flags.value(step.lstrip("-")) or ""
    if most in found and set_to.isdecimal() and int(set_to) < found[most]:
        click.echo(f"{most} is no more than {step}, which is {set_to}", err=True)
        found[most] = int(set_to)
    return found


def _probed_worker(file: NodeFile, target: TargetOptions, url: str) -> Worker:
    """The worker of the node file that was probed."""
    from disagg_cluster.nodefile.argument_edit import ArgumentEditError

    workers = file.config.workers
    if target.is_worker:
        found = [each for each in workers if each.name == target.engine]
    else:
        there = urlsplit(url)
        found = [
            each
            for each in workers
            if (urlsplit(each.url).hostname, each.port) == (there.hostname, there.port)
        ]
    if len(found) != 1:
        names = ", ".join(each.name for each in workers) or "none"
        raise ArgumentEditError(
            f"the node file of --write has no worker that is {target.engine}; its workers are "
            f"{names}: name one with --engine"
        )
    return found[0]


def _write(path: Path, text: str) -> None:
    from disagg_cluster.host.files.atomic_write import write_whole
    from disagg_cluster.host.files.writable import writing

    with writing(path):
        # Links are resolved, so that their target is replaced.
        place = path.resolve()
        mode = place.stat().st_mode & 0o777 if place.exists() else 0o644
        write_whole(place, text.encode(), mode)


def outcome_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--json`, `--plot`, `--profile` and `--write`, passed as `outcome`."""

    @functools.wraps(command)
    def gathered(
        plot: Path | None,
        profile: Path | None,
        node_file: Path | None,
        *,
        as_json: bool,
        **others: Any,
    ) -> Any:
        return command(outcome=OutcomeOptions(as_json, plot, profile, node_file), **others)

    path = click.Path(path_type=Path, dir_okay=False)
    options = (
        click.option(
            "--write",
            "node_file",
            type=path,
            metavar="NODE_FILE",
            help="Write the recommended arguments of the engine into this file; shows the diff.",
        ),
        click.option(
            "--profile", type=path, help="Save the measurements in a file for the planner."
        ),
        plot_option("it"),
        click.option("--json", "as_json", is_flag=True, help="Print it as JSON."),
    )
    wrapped: Callable[..., Any] = gathered
    for option in options:
        wrapped = option(wrapped)
    return wrapped
