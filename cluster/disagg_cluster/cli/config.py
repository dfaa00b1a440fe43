"""`disagg-node config`: checks a node file, shows what it would start, and prints the schema."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.host.columns import columns

if TYPE_CHECKING:
    from disagg_cluster.config import Attach, NodeConfig, Router, Worker
    from disagg_cluster.config.layout import Layout, Placement


@click.command
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--elsewhere",
    is_flag=True,
    help="For a node file of another node: folders and programs it names may be missing here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the layout or the problems as JSON.")
def check(file: Path, elsewhere: bool, as_json: bool) -> None:
    """Check a node file and show its layout.

    Reports every problem of FILE, or how and where each worker would be started. The devices of
    this machine are not checked.
    """
    from disagg_cluster.config.problems import ConfigError
    from disagg_cluster.supervisor.ownership.run_folders import usual_run_dir

    try:
        config, layout = _placed(file, elsewhere=elsewhere)
    except ConfigError as error:
        if as_json:
            problems = [asdict(problem) for problem in error.problems]
            click.echo(json.dumps({"problems": problems}, indent=2))
        click.echo(error, err=True)
        if not elsewhere and _is_right_elsewhere(file):
            click.echo(
                "valid on a node that has these; --elsewhere shows what it would do there", err=True
            )
        raise click.exceptions.Exit(error.exit_code) from error
    run_dir = config.run_folder or usual_run_dir(os.environ, os.getuid())
    certain = _counts_are_certain(config)
    entries = [
        _entry(worker, layout.of(worker.name), run_dir, certain) for worker in config.workers
    ]
    click.echo(_as_json(config, entries) if as_json else _as_text(config, entries))


def _placed(file: Path, *, elsewhere: bool) -> tuple[NodeConfig, Layout]:
    from disagg_cluster.config.layout import place
    from disagg_cluster.daemon.metrics_service import scheme_of
    from disagg_cluster.daemon.remote_control import check_protection
    from disagg_cluster.nodefile import ELSEWHERE, expected_devices, read
    from disagg_cluster.nodefile.reading import launching_host

    node_file = read(file, ELSEWHERE if elsewhere else launching_host())
    config = node_file.config
    layout = place(config, expected_devices(config), str(file), node_file.lines)
    if not elsewhere:
        scheme_of(config.listen)
        check_protection(config.control.grpc)
    return config, layout


def _is_right_elsewhere(file: Path) -> bool:
    from disagg_cluster.config.problems import ConfigError

    try:
        _placed(file, elsewhere=True)
    except ConfigError:
        return False
    return True


_TITLES: tuple[str, ...] = ("WORKER", "ROLE", "ENGINE", "GPUS", "PORT", "KV PORTS", "MODEL")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One worker, its place and its command.

    `gpus` as in the file; for a count, the GPUs it would get if they are certain.
    """

    worker: Worker
    gpus: list[int | str] | int
    argv: tuple[str, ...]


def _entry(worker: Worker, placement: Placement, run_dir: Path, certain: bool) -> _Entry:
    from disagg_cluster.host.files.package_data import engine_side_folder
    from disagg_cluster.launch.command import build

    socket, folder = run_dir / f"{worker.name}.sock", engine_side_folder()
    argv = build(worker, placement, steps_socket=socket, engine_side_folder=folder).argv
    if isinstance(worker.gpus, tuple):
        return _Entry(worker, list(worker.gpus), argv)
    found = [device.index for device in placement.devices if not device.is_pseudo]
    return _Entry(worker, [*found] if certain else worker.gpus, argv)


def _as_text(config: NodeConfig, entries: Sequence[_Entry]) -> str:
    from disagg_cluster.config.masking import masked_arguments
    from disagg_cluster.config.router import ROUTER_NAME
    from disagg_cluster.launch.router_command import router_command

    head = f"{config.node}: devices {config.devices}, metrics page on {config.listen.metrics}"
    if config.attach is not None:
        head += f"\nattaches to {', '.join(_attached_to(config.attach)) or 'nothing'}"
    rows = [_TITLES, *map(_row, entries)]
    if config.router is not None:
        port, engine = str(config.router.port), config.router.engine
        rows.append((ROUTER_NAME, "-", engine, "-", port, "-", "-"))
    argvs = [(entry.worker.name, entry.argv) for entry in entries]
    if config.router is not None:
        argvs.append((ROUTER_NAME, router_command(config, config.router).argv))
    commands = [f"{name}:\n  {shlex.join(masked_arguments(argv))}" for name, argv in argvs]
    return "\n\n".join([head, columns(rows), *commands] if commands else [head, "no workers"])


def _attached_to(attach: Attach) -> Iterator[str]:
    """Describes where engines that we did not launch are discovered."""
    yield from (engine.name or engine.url for engine in attach.endpoints)
    if attach.processes:
        yield "engines among the processes"
    if attach.kubernetes != "never":
        yield "those in pods" + (" where there is a cluster" if attach.kubernetes == "auto" else "")
    if attach.dynamo_files:
        yield f"Dynamo's workers in {attach.dynamo_files}"


def _row(entry: _Entry) -> tuple[str, ...]:
    worker, gpus = entry.worker, entry.gpus
    kv_ports = worker.side_channel_ports
    span = f"{kv_ports[0]}-{kv_ports[-1]}" if len(kv_ports) > 1 else "".join(map(str, kv_ports))
    return (
        worker.name,
        worker.role.value,
        worker.engine,
        f"any {gpus}" if isinstance(gpus, int) else ",".join(map(str, gpus)) or "-",
        str(worker.port),
        span or "-",
        worker.model_name,
    )


def _counts_are_certain(config: NodeConfig) -> bool:
    """Whether the GPUs left for counts are known; a UUID may turn out to be any index."""
    named = [
        gpu for worker in config.workers if isinstance(worker.gpus, tuple) for gpu in worker.gpus
    ]
    return not any(isinstance(gpu, str) for gpu in named)


def _as_json(config: NodeConfig, entries: Sequence[_Entry]) -> str:
    from disagg_cluster.config.masking import masked_arguments

    workers = [
        {
            "name": entry.worker.name,
            "role": entry.worker.role.value,
            "engine": entry.worker.engine,
            "gpus": entry.gpus,
            "host": entry.worker.host,
            "port": entry.worker.port,
            "kv_ports": list(entry.worker.side_channel_ports),
            "model": entry.worker.model_name,
            "argv": list(masked_arguments(entry.argv)),
        }
        for entry in entries
    ]
    node = {"node": config.node, "devices": config.devices.value, "metrics": config.listen.metrics}
    router = None if config.router is None else _router_value(config, config.router)
    attach = None if config.attach is None else config.attach.model_dump(mode="json")
    whole = {**node, "workers": workers, "router": router, "attach": attach, "problems": []}
    return json.dumps(whole, indent=2)


def _router_value(config: NodeConfig, router: Router) -> dict[str, object]:
    from disagg_cluster.config.masking import masked_arguments
    from disagg_cluster.launch.router_command import router_command, router_engines

    engines = router_engines(config, router)
    return {
        "engine": router.engine,
        "port": router.port,
        "metrics_port": router.metrics_port,
        "engines": {engine.url: engine.name for engine in engines},
        "argv": list(masked_arguments(router_command(config, router).argv)),
    }


@click.command
def schema() -> None:
    """Print the JSON schema of node files.

    Save it and name it in the first line of a node file: editors with a YAML language server then
    complete its keys and mark errors.

    \b
      disagg-node config schema > node-file.schema.json
      # yaml-language-server: $schema=node-file.schema.json
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.nodefile.shape import node_file_schema

    click.echo(json.dumps(node_file_schema(), indent=2))
