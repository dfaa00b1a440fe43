"""`disagg-node demo`: a node with stand-in or tiny real engines, a load and a Prometheus."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.devices import opened_devices
from disagg_cluster.cli.number_range import NumberRange
from disagg_cluster.cli.start import (
    LinkChoice,
    ListenChoice,
    link_options,
    listen_options,
    log_format_option,
    open_to_all,
    plain_option,
    say_where,
    unblocked_output,
    view_beside,
)

if TYPE_CHECKING:
    from disagg_cluster.config import NodeConfig
    from disagg_cluster.daemon.daemon import Daemon
    from disagg_cluster.demo.load import LoadGenerator
    from disagg_exporter.http.listen import ListenAddress

_USUAL_ADDRESS = "127.0.0.1:9847"


@click.command
@click.option("--seconds", type=NumberRange(min=1), help="Stop after this long.")
@click.option("--json", "as_json", is_flag=True, help="Print each second's line as JSON.")
@listen_options
@link_options
@click.option("--prometheus/--no-prometheus", "with_prometheus", default=True, show_default=True)
@click.option(
    "--vllm",
    "vllm_python",
    type=click.Path(path_type=Path),
    help="Run a real vLLM pair instead, with this interpreter; on the CPU without two GPUs.",
)
@plain_option
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@log_format_option
def demo(
    seconds: float | None,
    as_json: bool,
    listen: ListenChoice,
    links: LinkChoice,
    with_prometheus: bool,
    vllm_python: Path | None,
    plain: bool,
    verbose: bool,
    log_format: str,
) -> None:
    """Run a simulated node: 8 GPUs, 4 for prefill and 4 for decode; needs no GPU.

    Stand-in engines with constant costs run under the real daemon, which measures them as it would
    real ones. The load alternates between prompt-heavy and output-heavy. Prometheus is started as
    well if it is installed. On a terminal the live view opens; leaving it, or Ctrl-C, ends
    everything.
    """
    import asyncio
    import tempfile

    from disagg_cluster.config.layout import place
    from disagg_cluster.daemon.daemon import Daemon
    from disagg_cluster.daemon.endpoint_file import near_url
    from disagg_cluster.daemon.foreground import log_to_stderr, run
    from disagg_cluster.daemon.status_line import LinePrinter
    from disagg_cluster.demo.pools import pools_now
    from disagg_cluster.demo.sweeper import swept

    address = listen.over(_USUAL_ADDRESS)
    unblocked_output()
    log_to_stderr(verbose, as_json=log_format == "json")
    with contextlib.ExitStack() as ended:
        name = ended.enter_context(tempfile.TemporaryDirectory(prefix="disagg-demo-"))
        folder = Path(name).resolve()
        ended.enter_context(swept(folder))
        if vllm_python is None:
            config, load = _simulated(folder / "run", address)
        else:
            config, load = _real(folder / "run", address, vllm_python.absolute())
        click.echo(f"its workers: disagg-node status --run-dir {folder / 'run'}", err=True)

        port = _prometheus_port() if with_prometheus else None
        own = {} if port is None else {"prometheus": f"http://127.0.0.1:{port}"}
        shown = links.over(config.links.model_copy(update=own))
        config = config.model_copy(update={"links": shown})

        @contextlib.contextmanager
        def beside(_daemon: Daemon, address: ListenAddress) -> Iterator[None]:
            with (
                contextlib.nullcontext()
                if port is None
                else _prometheus(folder, config, address, port)
            ):
                load.start()
                try:
                    yield
                finally:
                    load.stop()

        with opened_devices(config, folder / "run") as source:
            daemon = Daemon(config, place(config, source.inventory()), source, folder / "run")
            load.follow(lambda: pools_now(config, daemon.snapshot))
            printer = LinePrinter(click.echo, as_json=as_json, requests=load.counts)
            view = view_beside(folder / "run", plain=plain or as_json)

            def serving(address: ListenAddress) -> None:
                say_where(address)
                if view is not None:
                    view.open(near_url(address), open_to_all(address, protected=False))

            running = run(
                daemon,
                printer.snapshot if view is None else view.unless_open(printer.snapshot),
                beside=beside,
                serving=serving,
                seconds=seconds,
                hangup_ends=True,
            )
            asyncio.run(running if view is None else view.beside(running))


def _simulated(run_dir: Path, metrics: str) -> tuple[NodeConfig, LoadGenerator]:
    from disagg_cluster.demo.load import LoadGenerator, send_through
    from disagg_cluster.demo.nodefile import WORKERS, demo_node_file, free_ports
    from disagg_cluster.demo.pools import first_pools
    from disagg_cluster.nodefile import from_mapping

    click.echo("SIMULATED: stand-in engines on simulated GPUs", err=True)
    node_file = demo_node_file(free_ports(WORKERS), metrics_address=metrics, run_dir=str(run_dir))
    config = from_mapping(node_file, "the demo's node file")
    send = send_through(config.workers[0].model_name)
    return config, LoadGenerator(first_pools(config), send)


def _real(run_dir: Path, metrics: str, python: Path) -> tuple[NodeConfig, LoadGenerator]:
    from disagg_cluster.demo.load import LoadGenerator, send_through
    from disagg_cluster.demo.nodefile import (
        TINY_OUTPUT_HEAVY,
        TINY_PROMPT_HEAVY,
        LoadShape,
        free_ports,
    )
    from disagg_cluster.demo.pools import first_pools
    from disagg_cluster.demo.real_vllm import pair
    from disagg_cluster.nodefile import from_mapping

    gpus = _gpu_count()
    where = "two of this machine's GPUs" if gpus >= pair.WORKERS else "the CPU"
    click.echo(f"real vLLM engines with a tiny random model on {where}", err=True)
    model = run_dir.parent / "model"
    pair.make_model(python, model)
    node_file = pair.pair_node_file(
        python,
        model,
        free_ports(pair.PORTS),
        gpus=gpus,
        metrics_address=metrics,
        run_dir=str(run_dir),
    )
    config = from_mapping(node_file, "the demo's node file")
    return config, LoadGenerator(
        first_pools(config),
        send_through(pair.MODEL_NAME, timeout_seconds=60.0),
        shape=LoadShape(TINY_PROMPT_HEAVY, TINY_OUTPUT_HEAVY),
        concurrency=8,
    )


def _gpu_count() -> int:
    """The number of GPUs the driver reports."""
    from disagg_exporter.devices.nvml.device_source import NvmlDevices
    from disagg_exporter.devices.source import DevicesUnavailable

    try:
        source = NvmlDevices()
    except DevicesUnavailable:
        return 0
    with contextlib.closing(source):
        return len(source.inventory())


def _prometheus_port() -> int | None:
    """The port for a Prometheus; None, with a hint how to get one, if it is not installed."""
    from disagg_cluster.demo.nodefile import free_ports
    from disagg_cluster.prometheus import local_server

    if local_server.find_prometheus(os.environ, shutil.which) is None:
        click.echo(local_server.HOW_TO_GET, err=True)
        return None
    return free_ports(1)[0]


@contextlib.contextmanager
def _prometheus(
    folder: Path, config: NodeConfig, address: ListenAddress, port: int
) -> Iterator[None]:
    """Run a Prometheus beside the demo."""
    from disagg_cluster.host.files.package_data import asset_dir
    from disagg_cluster.prometheus import local_server
    from disagg_cluster.supervisor.process.child_process import start as start_child

    binary = local_server.find_prometheus(os.environ, shutil.which)
    if binary is None:
        yield
        return
    target = local_server.ScrapeTarget(f"127.0.0.1:{address.port}", config.node, config.cluster)
    text = local_server.scrape_config(
        [target], interval_seconds=1.0, rule_files=[f"{asset_dir('alerts')}/rules/*.yaml"]
    )
    launch = local_server.prepare_prometheus(
        binary, folder / "prometheus", text, listen=f"127.0.0.1:{port}"
    )
    child = start_child(launch.argv, dict(os.environ), folder / "prometheus" / "prometheus.log")
    click.echo(f"Prometheus: {launch.url} (scrapes every second, our rules loaded)", err=True)
    try:
        yield
    finally:
        child.signal_group(signal.SIGKILL)
        child.reap()
