"""`disagg-node start`: launch and watch the workers of a node file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.host.run_dir.layout import default_run_dir, older_run_dirs

if TYPE_CHECKING:
    from disagg_cluster.config import NodeConfig
    from disagg_cluster.host.daemon_output import QueuedOutput
    from disagg_exporter.devices.source import DeviceChoice, DeviceSource
    from disagg_exporter.http.listen import ListenAddress


@click.command(context_settings={"allow_extra_args": True})
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="The node file; `disagg-node config check` explains it. Without one nothing is launched, "
    "and the engines that run on this node are found.",
)
@click.option(
    "--web-config",
    type=click.Path(path_type=Path),
    help="TLS, passwords and headers of the metrics page, as Prometheus exporters write them; "
    "instead of the node file's `listen: web_config:`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each second's line as JSON.")
@click.option("--quiet", is_flag=True, help="Print no line a second.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def start(
    file: Path | None, web_config: Path | None, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Launch a node file's workers, or find the engines here, and measure GPU-seconds by phase.

    Runs until Ctrl-C or SIGTERM, which drains and stops the workers; a second Ctrl-C waits for no
    request. Should it die, the workers go on and the next start adopts them; so it is at SIGTERM
    with `on_sigterm: leave`. Exits with 6 if a worker could not be ended. Prints a line a second
    with the prefill:decode ratio and serves the metrics page.
    """
    import asyncio

    from disagg_cluster.config import Attach, NodeConfig
    from disagg_cluster.config.layout import place
    from disagg_cluster.daemon.daemon import Daemon
    from disagg_cluster.daemon.foreground import log_to_stderr, run
    from disagg_cluster.daemon.metrics_service import scheme_of
    from disagg_cluster.daemon.status_line import LinePrinter
    from disagg_cluster.nodefile import NodeFile, read
    from disagg_cluster.supervisor.ownership.run_folders import usual_run_dir

    if extra := click.get_current_context().args:
        raise click.UsageError(f"unexpected argument {extra[0]!r}; --config names the node file")
    output = unblocked_output()
    log_to_stderr(verbose)
    node_file = NodeFile(NodeConfig(attach=Attach()), {}) if file is None else read(file)
    config = node_file.config
    if web_config is not None:
        listen = config.listen.model_copy(update={"web_config": str(web_config)})
        config = config.model_copy(update={"listen": listen})
    scheme = scheme_of(config.listen)
    run_folder = config.run_folder or usual_run_dir(os.environ, os.getuid())
    if config.run_folder is None and run_folder in older_run_dirs(os.environ, os.getuid()):
        usual = default_run_dir(os.environ, os.getuid())
        text = f"something of an earlier version runs in {run_folder}: it is used on"
        click.echo(f"{text}, and {usual} when that has ended", err=True)
    with opened_devices(config, run_folder) as source:
        layout = place(config, source.inventory(), str(file), node_file.lines)
        daemon = Daemon(
            config,
            layout,
            source,
            run_folder,
            on_failure="leave",
            beside=lambda: (output.status(),),
        )
        printer = LinePrinter(click.echo, as_json=as_json, quiet=quiet)
        serving = partial(say_where, scheme=scheme)
        asyncio.run(run(daemon, printer.snapshot, serving=serving))


def unblocked_output() -> QueuedOutput:
    """Let nothing that is printed block from here on, the last word of the command included."""
    from disagg_cluster.host.daemon_output import queued_output

    return click.get_current_context().find_root().with_resource(queued_output())


def say_where(address: ListenAddress, scheme: str = "http") -> None:
    """Say where the metrics page is."""
    from disagg_cluster.daemon.endpoint_file import near_url

    click.echo(f"metrics page: {near_url(address, scheme)}/metrics", err=True)


@contextlib.contextmanager
def opened_devices(config: NodeConfig, run_folder: Path) -> Iterator[DeviceSource]:
    """Open the devices that a node file asks for, and close them."""
    choice = chosen_devices(config, run_folder)
    if choice.fallback is not None:
        instead = {"dcgm": "GPUs are read from dcgm-exporter"}.get(
            choice.source.name, "no GPUs are read, engines run on the CPU"
        )
        click.echo(f"{instead}: {choice.fallback.why}", err=True)
    with contextlib.closing(choice.source):
        yield choice.source


def chosen_devices(config: NodeConfig, run_folder: Path | None = None) -> DeviceChoice:
    """Open the devices that a node file asks for; the caller closes them."""
    from disagg_cluster.supervisor.ownership.run_folders import usual_run_dir
    from disagg_exporter.devices.source import choose_devices

    folder = run_folder or config.run_folder or usual_run_dir(os.environ, os.getuid())
    return choose_devices(
        config.devices,
        nvml=lambda: _supplemented(_nvml(), config),
        dcgm=None if config.dcgm is None else lambda: _dcgm(config),
        sim=lambda: _simulated(folder / "sim", config.sim_devices),
    )


def _nvml() -> DeviceSource:
    from disagg_exporter.devices.nvml.device_source import NvmlDevices

    return NvmlDevices()


def _dcgm(config: NodeConfig) -> DeviceSource:
    from disagg_exporter.devices.dcgm.device_source import DcgmDevices

    if config.dcgm is None:
        raise ValueError("the file names no dcgm-exporter")
    return DcgmDevices(config.dcgm.url, config.dcgm.interval_seconds)


def _supplemented(nvml: DeviceSource, config: NodeConfig) -> DeviceSource:
    """Fill up what the driver does not report, if the file names a dcgm-exporter that answers."""
    from disagg_exporter.devices.source import DevicesUnavailable

    if config.dcgm is None:
        return nvml
    from disagg_exporter.devices.source import SupplementedDevices

    try:
        return SupplementedDevices(nvml, _dcgm(config))
    except DevicesUnavailable as unavailable:
        click.echo(f"GPUs are read without dcgm-exporter: {unavailable.why}", err=True)
        return nvml


def _simulated(folder: Path, count: int) -> DeviceSource:
    from disagg_exporter.devices.simulated import SimDevices

    return SimDevices(folder, count)
