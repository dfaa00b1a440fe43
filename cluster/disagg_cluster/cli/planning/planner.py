"""`disagg-node planner`: the planning service of a whole cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from disagg_cluster.cli.start import say_where, unblocked_output


@click.command
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="The planner file (docs/planner.md); without one the Prometheus of this machine is read.",
)
@click.option("--check", is_flag=True, help="Only check the file, and report all its problems.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def planner(file: Path | None, check: bool, verbose: bool) -> None:
    """Forecast the load of a cluster every few minutes, and export the results.

    Runs once per cluster, beside its Prometheus, not on each node. Runs until Ctrl-C or SIGTERM and
    serves a metrics page with the same TLS and passwords as a node's.
    """
    from disagg_cluster.daemon.foreground import log_to_stderr
    from disagg_cluster.daemon.metrics_service import scheme_of
    from disagg_cluster.host.linear_algebra import one_thread
    from disagg_cluster.planner.service.planner_service import PlannerService
    from disagg_cluster.planner.settings.planner_file import PlannerConfig, read_planner_file
    from disagg_cluster.prometheus import http_config_file

    config = PlannerConfig() if file is None else read_planner_file(file)
    scheme = scheme_of(config.listen)
    if config.prometheus.http_config is not None:
        http_config_file.load(Path(config.prometheus.http_config))
    if check:
        click.echo(f"{file or 'no file'}: valid")
        return
    one_thread()
    unblocked_output()
    log_to_stderr(verbose)
    say = partial(
        say_where,
        scheme=scheme,
        protected=config.listen.web_config is not None,
        elsewhere=f"`listen: metrics: 127.0.0.1:{config.listen.metrics_address.port}`",
    )
    PlannerService(config).run(say)
