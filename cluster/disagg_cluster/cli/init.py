"""`disagg-node init`, which writes a first node file, and `container-init`, for containers."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_exporter.errors import DisaggError

if TYPE_CHECKING:
    from disagg_cluster.deploy.first_node_file import MachineFindings

_USUAL_FILE = "node.yaml"
_MOST_MODELS = 8


class FileInTheWayError(DisaggError):
    """A node file already exists, or cannot be written."""


@click.command
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    default=_USUAL_FILE,
    show_default=True,
    help="The file to write; - is standard output.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def init(output: Path, as_json: bool) -> None:
    """Write a commented node file for the GPUs and engines of this machine.

    Looks for GPUs, interpreters with vLLM or SGLang, and models in the hub's cache. An existing
    file is never overwritten.
    """
    from disagg_cluster.deploy.first_node_file import first_node_file

    if as_json and str(output) == "-":
        raise click.UsageError("--json prints what was found: --output names a file for the rest")
    # Not the method, which raises where a name is too long for a file.
    if str(output) != "-" and os.path.exists(output):  # noqa: PTH110
        raise FileInTheWayError(f"{output} is there already; --output names another file")
    found = _found()
    text = first_node_file(found, date.today().isoformat())
    if str(output) == "-":
        click.echo(text, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise FileInTheWayError(f"cannot write {output}: {error.strerror}") from error
    if as_json:
        click.echo(json.dumps({"file": str(output), **asdict(found)}, indent=2))
        return
    click.echo(f"{output}: written")
    click.echo(f"next: disagg-node config check {output}", err=True)


# Options after the first word of COMMAND belong to COMMAND.
@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def container_init(command: tuple[str, ...]) -> None:
    """Run COMMAND as the first process of a container, and again when it crashes.

    Forwards signals, reaps orphaned processes, and ends with COMMAND's exit code when that ends as
    planned: with 0, with 2 (bad input), or after a request to end. Engines survive a crash of
    COMMAND and are adopted by its next start.

    Example: disagg-node container-init -- disagg-node start -c /etc/disagg-node/node.yaml
    """
    _be_first_process(command)


def _be_first_process(command: tuple[str, ...]) -> None:
    from disagg_cluster.host.daemon_output import queued_output
    from disagg_cluster.supervisor import first_process

    def say(text: str) -> None:
        click.echo(f"init: {text}", err=True)

    click.get_current_context().find_root().with_resource(queued_output())
    raise click.exceptions.Exit(first_process.run(command, say))


def _found() -> MachineFindings:
    from disagg_cluster.deploy.first_node_file import MachineFindings

    return MachineFindings(os.uname().nodename, _gpu_names(), tuple(_engines()), tuple(_models()))


def _gpu_names() -> tuple[str, ...]:
    from contextlib import closing

    from disagg_cluster.cli.devices import chosen_devices
    from disagg_cluster.config import NodeConfig

    with closing(chosen_devices(NodeConfig()).source) as source:
        inventory = source.inventory()
    return tuple(device.gpu_name for device in inventory or () if not device.is_pseudo)


def _engines() -> Iterator[tuple[str, str]]:
    """Interpreters that have an engine: those of the engine commands, ours, and the shell's."""
    from disagg_cluster.host.processes.interpreter import lacks_module

    commands = filter(None, map(shutil.which, ("vllm", "sglang")))
    beside = [Path(command).with_name("python") for command in commands]
    shell = os.environ.get("VIRTUAL_ENV")
    pythons = [*beside, Path(sys.executable), *([Path(shell) / "bin" / "python"] if shell else [])]
    for python in dict.fromkeys(map(str, pythons)):
        if not os.access(python, os.X_OK):
            continue
        for kind in ("vllm", "sglang"):
            if not lacks_module(python, kind, os.environ):
                yield kind, python


def _models() -> Iterator[str]:
    """The names of models in the hub's cache."""
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    folder = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    try:
        names = sorted(path.name for path in folder.glob("models--*--*"))
    except OSError:
        return
    for name in names[:_MOST_MODELS]:
        yield name.removeprefix("models--").replace("--", "/")
