"""The command `disagg-node`: its table of commands, and how it fails."""

from __future__ import annotations

from typing import Any

import click

from disagg_cluster.cli.lazy import LazyGroup, Row
from disagg_exporter import __version__
from disagg_exporter.errors import DisaggError

_ROWS = {
    "start": Row(
        "disagg_cluster.cli.start:start", "Launch a node file's workers, or find running engines."
    ),
    "stop": Row("disagg_cluster.cli.stop:stop", "End a daemon, or the workers that one has left."),
    "status": Row(
        "disagg_cluster.cli.steer.status:status", "Show a daemon and its workers, by its own word."
    ),
    "pause": Row(
        "disagg_cluster.cli.steer.pause:pause", "Only observe workers: kill and start nothing."
    ),
    "resume": Row("disagg_cluster.cli.steer.pause:resume", "Supervise paused workers again."),
    "restart": Row(
        "disagg_cluster.cli.steer.restart:restart",
        "Drain a worker and start it anew; un-fails it, too.",
    ),
    "phases": Row(
        "disagg_cluster.cli.phases:phases", "Show who is on which GPU, in which role and phase."
    ),
    "doctor": Row(
        "disagg_cluster.cli.doctor:doctor", "Say what is missing, and how good the numbers are."
    ),
    "demo": Row("disagg_cluster.cli.demo:demo", "Run a simulated node; needs no GPU."),
    "config": Row(
        "disagg_cluster.cli.node_file.config:config", "Look at a node file without starting it."
    ),
    "dashboards": Row(
        "disagg_cluster.cli.deploy.dashboards:dashboards", "Write our Grafana dashboards."
    ),
    "install": Row(
        "disagg_cluster.cli.deploy.install:install", "Install on a machine without Kubernetes."
    ),
    "init": Row("disagg_cluster.cli.init:init", "Be the first process of a container."),
    "plugin": Row(
        "disagg_cluster.cli.deploy.plugin:plugin", "The part of us that runs inside engines."
    ),
    "roles": Row("disagg_cluster.cli.roles:roles", "Look at how the roles of engines are found."),
    "rules": Row(
        "disagg_cluster.cli.deploy.rules:rules", "Recording rules and alerts for Prometheus."
    ),
    "report": Row("disagg_cluster.cli.report:report", "Report how a cluster's GPU time was used."),
    "completion": Row(
        "disagg_cluster.cli.completion:completion", "Print the completion script of a shell."
    ),
}


class _Main(LazyGroup):
    """The root group: an error that we raise on purpose ends in one clean report."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DisaggError as error:
            # A report of problems begins each line with its file; everything else with our name.
            prefix = "" if error.exit_code == 2 else f"{ctx.info_name}: "
            click.echo(f"{prefix}{_without_passwords(str(error))}", err=True)
            raise click.exceptions.Exit(error.exit_code) from error
        except click.UsageError as error:
            error.message = _without_passwords(error.message)  # type: ignore[misc] # shown as it is
            raise


def _without_passwords(text: str) -> str:
    # Only where there is one is it worth what the import takes.
    if "@" not in text:
        return text
    from disagg_cluster.config.masking import urls_masked

    return urls_masked(text)


main = _Main(
    "disagg-node",
    _ROWS,
    help="GPU-seconds of LLM inference by phase: launch, watch and measure the prefill and "
    "decode workers of this node.",
    epilog="Exit codes: 0 done, 1 failed, 2 bad input or usage; of requests to a daemon also "
    "3 refused, 4 no daemon answers, 5 not done in time; of a daemon also 6 a worker could not be "
    "ended.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
main = click.version_option(__version__, prog_name="disagg-node")(main)
