"""`disagg-node start`: launches and supervises the workers of a node file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from disagg_cluster.cli.devices import gpus_appeared, opened_devices
from disagg_cluster.host.garbage import uncollected
from disagg_cluster.host.run_dir.layout import RunFolder, default_run_dir, older_run_dirs

if TYPE_CHECKING:
    from disagg_cluster.config import LinksConfig
    from disagg_cluster.host.daemon_output import QueuedOutput
    from disagg_cluster.top.terminal.beside_daemon import ViewBesideDaemon
    from disagg_exporter.http.listen import ListenAddress


def listen_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--listen` and `--port`, passed as `listen`: where the pages are served."""

    @click.option(
        "--listen",
        metavar="ADDRESS",
        help="Where the pages are served: 127.0.0.1, 127.0.0.1:9847 or [::]:9847; overrides the "
        "node file.",
    )
    @click.option("--port", type=click.IntRange(0, 65535), help="Override only the port.")
    @functools.wraps(command)
    def with_listen(*args: Any, listen: str | None, port: int | None, **kwargs: Any) -> Any:
        return command(*args, listen=ListenChoice(listen, port), **kwargs)

    return with_listen


@dataclass(frozen=True, slots=True)
class ListenChoice:
    """The address options of the command line; None where not given."""

    address: str | None
    port: int | None

    def over(self, usual: str) -> str:
        """The address to listen on, with `usual` for what is not given.

        Raises:
            UsageError: Not an address.
        """
        from disagg_exporter.http.listen import ListenAddress, ListenError, parse_listen

        before = parse_listen(usual)
        text = usual if self.address is None else self.address
        try:
            # A host without a port keeps the usual port.
            bare = ":" not in text or text.endswith("]")
            chosen = parse_listen(f"{text}:{before.port}" if bare else text)
        except ListenError as error:
            raise click.UsageError(f"--listen: {error}") from None
        return str(chosen if self.port is None else ListenAddress(chosen.host, self.port))


def link_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--prometheus-url` and `--grafana-url`, passed as `links`."""

    @click.option(
        "--prometheus-url",
        metavar="URL",
        envvar="DISAGG_NODE_PROMETHEUS_URL",
        help="The Prometheus that the HTML page links to.",
    )
    @click.option(
        "--grafana-url",
        metavar="URL",
        envvar="DISAGG_NODE_GRAFANA_URL",
        help="The Grafana with our dashboards that the HTML page links to.",
    )
    @functools.wraps(command)
    def with_links(
        *args: Any, prometheus_url: str | None, grafana_url: str | None, **kwargs: Any
    ) -> Any:
        return command(*args, links=LinkChoice(prometheus_url, grafana_url), **kwargs)

    return with_links


@dataclass(frozen=True, slots=True)
class LinkChoice:
    """The link options of the command line; None where not given."""

    prometheus: str | None
    grafana: str | None

    def over(self, usual: LinksConfig) -> LinksConfig:
        """The links to show, with `usual` for those not given.

        Raises:
            UsageError: One is not an address.
        """
        from pydantic import ValidationError

        said = {"prometheus": self.prometheus, "grafana": self.grafana}
        given = {name: url for name, url in said.items() if url}
        try:
            return type(usual).model_validate({**usual.model_dump(), **given})
        except ValidationError as error:
            [name] = {str(each["loc"][0]) for each in error.errors()[:1]}
            why = f"{given[name]!r} is no root address such as http://{name}:9090"
            raise click.UsageError(f"--{name}-url: {why}") from None


log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    envvar="DISAGG_NODE_LOG_FORMAT",
    help="Format of the log on standard error.",
)

plain_option = click.option(
    "--plain",
    is_flag=True,
    help="Print a line a second instead of opening the live view on a terminal.",
)


@click.command(context_settings={"allow_extra_args": True})
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="The node file; `disagg-node config check` explains it. Without one nothing is launched, "
    "and running engines are discovered on this node.",
)
@click.option(
    "--web-config",
    type=click.Path(path_type=Path),
    help="TLS, passwords and headers of the metrics page, in the format of Prometheus exporters; "
    "overrides the node file's `listen: web_config:`.",
)
@listen_options
@link_options
@click.option("--json", "as_json", is_flag=True, help="Print each second's line as JSON.")
@click.option("--quiet", is_flag=True, help="Print no status lines, and open no live view.")
@plain_option
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@log_format_option
def start(
    file: Path | None,
    web_config: Path | None,
    listen: ListenChoice,
    links: LinkChoice,
    as_json: bool,
    quiet: bool,
    plain: bool,
    verbose: bool,
    log_format: str,
) -> None:
    """Launch a node file's workers, or find running engines, and measure GPU-seconds by phase.

    Runs until Ctrl-C or SIGTERM, which drains and stops the workers; a second Ctrl-C stops waiting
    for requests. If the daemon crashes, or at SIGTERM with `on_sigterm: leave`, the workers keep
    running and the next start adopts them. Exits with 6 if a worker could not be ended. Serves
    http://HOST:9847/ for people and /metrics; opens the live view on a terminal, and otherwise
    prints a line a second with the prefill:decode ratio. Leaving the view counts as Ctrl-C.
    """
    context = click.get_current_context()
    if context.args:
        raise click.UsageError(
            f"unexpected argument {context.args[0]!r}; --config names the node file"
        )
    context.with_resource(uncollected())
    import asyncio

    from disagg_cluster.config import Attach, NodeConfig
    from disagg_cluster.config.layout import place
    from disagg_cluster.daemon.daemon import Daemon
    from disagg_cluster.daemon.endpoint_file import near_url
    from disagg_cluster.daemon.foreground import log_to_stderr, run
    from disagg_cluster.daemon.held_gpus import gpus_held
    from disagg_cluster.daemon.metrics_service import scheme_of
    from disagg_cluster.daemon.status_line import LinePrinter
    from disagg_cluster.nodefile import NodeFile, read
    from disagg_cluster.nodefile.reading import launching_host
    from disagg_cluster.supervisor.ownership.run_folders import usual_run_dir
    from disagg_exporter.devices.source import DeviceKind

    output = unblocked_output()
    log_to_stderr(verbose, as_json=log_format == "json")
    node_file = (
        NodeFile(NodeConfig(attach=Attach()), {}) if file is None else read(file, launching_host())
    )

    def as_started(said: NodeConfig) -> NodeConfig:
        """The file's settings, overridden by the options of this command."""
        reached = {"metrics": listen.over(said.listen.metrics)}
        if web_config is not None:
            reached["web_config"] = str(web_config)
        where = said.listen.model_copy(update=reached)
        return said.model_copy(update={"listen": where, "links": links.over(said.links)})

    config = as_started(node_file.config)
    scheme = scheme_of(config.listen)
    run_folder = config.run_folder or usual_run_dir(os.environ, os.getuid())
    if config.run_folder is None and run_folder in older_run_dirs(os.environ, os.getuid()):
        usual = default_run_dir(os.environ, os.getuid())
        text = f"an earlier version still runs in {run_folder}: that folder is used"
        click.echo(f"{text}, and {usual} once that has ended", err=True)
    printer = LinePrinter(click.echo, as_json=as_json, quiet=quiet)
    protected = config.listen.web_config is not None

    def run_once() -> bool:
        """Run a daemon to its end; return whether another should follow."""
        with opened_devices(config, run_folder) as source:
            devices = source.inventory()
            held = gpus_held(RunFolder(run_folder), devices)
            layout = place(config, devices, str(file), node_file.lines, held=held)
            daemon = Daemon(
                config,
                layout,
                source,
                run_folder,
                on_failure="leave",
                beside=lambda: (output.status(),),
                file=file,
                as_started=as_started,
            )
            view = view_beside(run_folder, plain=plain or as_json or quiet)

            def serving(address: ListenAddress) -> None:
                say_where(address, scheme=scheme, protected=protected)
                if view is not None:
                    view.open(near_url(address, scheme), open_to_all(address, protected=protected))

            each_second = printer.snapshot if view is None else view.unless_open(printer.snapshot)
            # Workers run on what there was when they were launched.
            may_find = not devices and config.devices is DeviceKind.AUTO and not config.workers
            appeared = partial(gpus_appeared, config, run_folder) if may_find else None
            running = run(daemon, each_second, serving=serving, outdated=appeared)
            return asyncio.run(running if view is None else view.beside(running))

    while run_once():
        pass


def view_beside(run_folder: Path, *, plain: bool) -> ViewBesideDaemon | None:
    """The live view for this terminal; None without a terminal or with plain output.

    Args:
        run_folder: The run folder of the daemon to show.
        plain: Whether plain lines were requested.
    """
    from disagg_cluster.top.terminal.presence import has_terminal

    if plain or not has_terminal(os.environ):
        return None
    from disagg_cluster.top.terminal.beside_daemon import ViewBesideDaemon

    return ViewBesideDaemon(
        RunFolder(run_folder).daemon_log,
        partial(click.echo, err=True),
        ("--beside", "--run-dir", str(run_folder)),
    )


def unblocked_output() -> QueuedOutput:
    """Make all further output non-blocking, up to the end of the command."""
    from disagg_cluster.host.daemon_output import queued_output

    return click.get_current_context().find_root().with_resource(queued_output())


def say_where(
    address: ListenAddress,
    scheme: str = "http",
    *,
    protected: bool = False,
    elsewhere: str = "--listen 127.0.0.1",
) -> None:
    """Print the addresses of the pages, with a warning if anybody can read them.

    `elsewhere` makes the program listen on another address.
    """
    from disagg_cluster.daemon.endpoint_file import near_url

    root = near_url(address, scheme)
    click.echo(f"web page: {root}/\nmetrics page: {root}/metrics", err=True)
    if text := open_to_all(address, protected=protected, elsewhere=elsewhere):
        click.echo(text, err=True)


def open_to_all(
    address: ListenAddress, *, protected: bool, elsewhere: str = "--listen 127.0.0.1"
) -> str:
    """A warning that anybody can read the pages, and how to change it; empty otherwise."""
    if protected or address.host not in ("", "0.0.0.0", "::"):
        return ""
    return (
        "both are served on all addresses of this machine, to everybody and without a "
        f"password: {elsewhere} or `web_config:` (docs/serving.md) changes that"
    )
