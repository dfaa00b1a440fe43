"""The command `disagg-node`: its table of commands, and its error handling."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from disagg_exporter import __version__
from disagg_exporter.errors import EXIT_INTERRUPTED, DisaggError, escaped_lines

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The file to which a command's output goes has no room left."""


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command and its line in the help of its group.

    `command` is the command itself or its location below this package (`module:name`).
    """

    command: str | click.Command
    help: str


class LazyGroup(click.Group):
    """A group that imports a command only when it is used.

    Args:
        name: The group's name.
        rows: Its commands by name; help and completion use only this.
        settings: Passed on to `click.Group`.
    """

    def __init__(self, name: str, rows: Mapping[str, LazyCommand], **settings: object) -> None:
        super().__init__(name, **settings)  # type: ignore[arg-type] # passed through as it came
        self._rows = rows

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in table order."""
        return list(self._rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports and returns a command."""
        row = self._rows.get(cmd_name)
        if row is None:
            return None
        if isinstance(row.command, click.Command):
            return row.command
        module, _, attribute = row.command.partition(":")
        command = getattr(importlib.import_module(f"disagg_cluster.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command; a misspelt name is answered with the closest one."""
        name = args[0]
        if name not in self._rows and not name.startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(name, self._rows, 1)
            if close:
                ctx.fail(f"no command {name!r}; did you mean {close[0]}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in self._rows.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completions for `incomplete`."""
        commands = [
            CompletionItem(name, help=row.help)
            for name, row in self._rows.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)


_CONFIG = LazyGroup(
    "config",
    {
        "check": LazyCommand("config:check", "Check a node file and show its layout."),
        "schema": LazyCommand("config:schema", "Print the JSON schema of node files."),
    },
    help="Check a node file without starting it.",
)
_DASHBOARDS = LazyGroup(
    "dashboards",
    {
        "export": LazyCommand(
            "installing.shipped:dashboards_export", "Write the dashboards for a Grafana."
        )
    },
    help="The Grafana dashboards of disagg-node.",
)
_PLUGIN = LazyGroup(
    "plugin",
    {
        "copy": LazyCommand(
            "installing.shipped:plugin_copy", "Copy it to where an engine can load it."
        ),
        "env": LazyCommand(
            "installing.shipped:plugin_env", "Print the variables that a hand-run engine needs."
        ),
    },
    help="The plugin with which an engine reports its steps.",
)
_ROLES = LazyGroup(
    "roles",
    {"explain": LazyCommand("roles:explain", "Name an engine's role, how surely and why.")},
    help="Explain how the roles of engines are detected.",
)
_RULES = LazyGroup(
    "rules",
    {
        "export": LazyCommand(
            "installing.shipped:rules_export", "Write rules and alerts into a folder."
        )
    },
    help="Recording rules and alerts for Prometheus, and an example for Alertmanager.",
)

_TUNE = LazyGroup(
    "tune",
    {
        "prefill": LazyCommand(
            "tuning.tune:prefill", "Find the smallest prefill step that saturates an engine."
        ),
        "decode": LazyCommand(
            "tuning.tune:decode", "Find the largest batch within the inter-token target."
        ),
    },
    help="Probe an engine for its best limits: few probes, and none while it serves users.",
)

_ROWS = {
    name: LazyCommand(command, text)
    for name, command, text in (
        ("start", "start:start", "Launch a node file's workers, or find running engines."),
        ("stop", "stop:stop", "Stop a daemon, or the workers left behind by one."),
        ("status", "workers.status:status", "Show the state of a daemon and its workers."),
        ("logs", "workers.logs:logs", "Show what a worker prints."),
        ("reload", "workers.reload:reload", "Apply a changed node file."),
        ("pause", "control:pause", "Only observe workers: kill and start nothing."),
        ("resume", "control:resume", "Supervise paused workers again."),
        ("restart", "control:restart", "Drain a worker and start it again, also a failed one."),
        ("reassign", "workers.reassign:reassign", "Move a worker's GPUs to the other phase."),
        ("drain", "workers.reassign:drain", "Send a worker no new requests until it is resumed."),
        ("explain", "workers.reassign:explain", "Explain why a worker is in its state."),
        ("top", "live.top:top", "Show live how GPU time is split, and what is wrong."),
        ("phases", "inspect:phases", "Show the engine, role and phases of each GPU."),
        ("doctor", "inspect:doctor", "Check what is missing, and how good the numbers are."),
        ("demo", "demo:demo", "Run a simulated node; needs no GPU."),
        ("config", _CONFIG, "Check a node file without starting it."),
        ("dashboards", _DASHBOARDS, "Write our Grafana dashboards."),
        ("install", "installing.install:install", "Install on a machine without Kubernetes."),
        ("uninstall", "installing.uninstall:uninstall", "Remove what install has written."),
        ("init", "init:init", "Write a first node file for this machine."),
        ("container-init", "init:container_init", "Run as the first process of a container."),
        ("plugin", _PLUGIN, "The plugin with which engines report their steps."),
        ("roles", _ROLES, "Explain how the roles of engines are detected."),
        ("rules", _RULES, "Recording rules and alerts for Prometheus."),
        ("report", "planning.report:report", "Report how a cluster's GPU time was used."),
        ("forecast", "planning.forecast:forecast", "Forecast the load of prefill and decode."),
        (
            "backtest",
            "planning.backtest:backtest",
            "Measure how good past forecasts would have been.",
        ),
        ("plan", "planning.plan:plan", "Plan how many GPUs each phase needs, when and why."),
        ("whatif", "planning.plan:whatif", "Plan for another load, other GPUs or targets."),
        (
            "separation",
            "planning.separation:separation",
            "Say whether separating prefill and decode would pay.",
        ),
        (
            "rebalance",
            "planning.rebalance:rebalance",
            "Say which engine should change its role, and why.",
        ),
        ("tune", _TUNE, "Probe an engine for its best limits."),
        ("compare", "planning.compare:compare_spans", "Compare two spans of time at equal load."),
        (
            "diagnose",
            "planning.diagnose:diagnose_models",
            "Name the engine that delays first tokens, and why.",
        ),
        ("planner", "planning.planner:planner", "Forecast for a whole cluster, as a service."),
        (
            "completion",
            "installing.completion:completion",
            "Print the completion script of a shell.",
        ),
    )
}


class _Main(LazyGroup):
    """The root group: reports our own errors in one place."""

    def invoke(self, ctx: click.Context) -> Any:
        ctx.color = _forced_colour(os.environ)
        _open_closed_streams()
        _write_any_character()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Leaves the shell prompt on a new line; a Ctrl-C needs no message.
            click.echo(err=True)
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
        except DisaggError as error:
            # Reports of problems in a file begin with its name, all others with ours.
            prefix = "" if error.exit_code == 2 else f"{ctx.info_name}: "
            click.echo(f"{prefix}{_shown(str(error))}", err=True)
            raise click.exceptions.Exit(error.exit_code) from error
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            # Of what a command prints, or of a file that it writes.
            click.echo(f"{ctx.info_name}: cannot write: {error.strerror}", err=True)
            raise click.exceptions.Exit(1) from error
        except click.UsageError as error:
            message = _hint(error) or error.message
            error.message = _shown(message)  # type: ignore[misc] # final, but read only by what shows it
            raise


def _open_closed_streams() -> None:
    """Let commands read nothing from, and write to nowhere, what the caller has closed (`2>&-`)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # For as long as the command runs.
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)


def _write_any_character() -> None:
    """Write `?` for what the locale's encoding lacks, such as a progress bar in a log."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _forced_colour(environ: Mapping[str, str]) -> bool | None:
    """Whether colour is forced on or off; None to decide by whether the output is a terminal.

    Follows https://no-color.org and https://force-color.org.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return False if environ.get("TERM") == "dumb" else None


_ARGUMENTS = {
    "WORKER": "`disagg-node status` lists them.",
    "DIR": "It is the folder to write into.",
}
"""Hints for missing arguments, by argument name."""


def _hint(error: click.UsageError) -> str:
    """A hint for a missing parameter: the help of the option."""
    if not isinstance(error, click.MissingParameter) or error.message or error.param is None:
        return ""
    if isinstance(error.param, click.Option):
        message = error.param.help or ""
        # Click appends the choices after its own full stop.
        return message.removesuffix(".") if isinstance(error.param.type, click.Choice) else message
    return _ARGUMENTS.get(error.param.make_metavar(error.ctx), "") if error.ctx else ""


def _shown(text: str) -> str:
    """A message without passwords in URLs, and without what a terminal would obey."""
    # Most messages have no URL with credentials; skip the import for them.
    if "@" in text:
        from disagg_cluster.config.masking import urls_masked

        text = urls_masked(text)
    return escaped_lines(text)


main = _Main(
    "disagg-node",
    _ROWS,
    help="GPU-seconds of LLM inference by phase: launch, watch and measure the prefill and "
    "decode workers of this node.",
    epilog="Exit codes: 0 done, 1 failed, 2 bad input or usage; of requests to a daemon also "
    "3 refused, 4 no daemon answers, 5 not done in time; of a daemon also 6 a worker could not be "
    "ended; 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
main = click.version_option(__version__, "-V", "--version", prog_name="disagg-node")(main)
