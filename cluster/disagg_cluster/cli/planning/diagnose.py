"""`disagg-node diagnose`: which engine delays first tokens now, why, and what to do."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.daemon_page import http_config_option
from disagg_cluster.cli.planning.load_source import span
from disagg_cluster.cli.planning.progress import Progress
from disagg_cluster.cli.prometheus_access import (
    DEFAULT_URL,
    PrometheusAccess,
    access_of,
    header_option,
    named_prometheus,
)
from disagg_exporter.errors import DisaggError, escaped_lines

if TYPE_CHECKING:
    from disagg_cluster.planner.diagnose.reading.rolling_diagnosis import Diagnoses
    from disagg_cluster.planner.diagnose.verdict.values import TtftPart
    from disagg_cluster.planner.settings.planner_file import PlannerConfig

_WATCH_SECONDS = 15.0
_LEAST_SECONDS, _MOST_SECONDS = 120.0, 6 * 3600.0
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"
_COLOURS = {
    "ROUTER": "magenta",
    "QUEUE": "red",
    "PREFILL": "blue",
    "KV_TRANSFER": "yellow",
    "FIRST_DECODE": "green",
}


class NothingServedError(DisaggError):
    """No engine serves the requested model; the message lists those there are."""


@click.command("diagnose")
@click.option(
    "--prometheus",
    "url",
    metavar="URL",
    help="A Prometheus that scrapes the nodes, or a server with its API.  [default: that of the "
    f"planner file, or {DEFAULT_URL}]",
)
@click.option(
    "--since",
    "since_seconds",
    callback=span,
    default="30m",
    show_default=True,
    metavar="SPAN",
    help="How far back to look: 2m to 6h.",
)
@click.option("--cluster", help="Only this cluster.  [default: each of them]")
@click.option("--model", help="Only this model.  [default: each of them]")
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="A planner file: the targets of each model, and the address of Prometheus.",
)
@header_option
@http_config_option
@click.option("--watch", is_flag=True, help="Repeat every 15 s, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON; with --watch as lines.")
def diagnose_models(
    url: str | None,
    since_seconds: float,
    cluster: str | None,
    model: str | None,
    file: Path | None,
    headers: Sequence[str],
    http_config: Path | None,
    watch: bool,
    as_json: bool,
) -> None:
    """Name the engine that delays first tokens now, why, what that costs, and what to do.

    For each model: its bottlenecks, the costliest first, with evidence and an action; or that
    there is none and what was checked; or that it is undecided and what is missing. Below, where
    the time to first token goes at each engine, beyond what its work should take. Exit code 0
    for any outcome (--json: `outcome`), 1 without an answer, 2 for bad usage.

    \b
      disagg-node diagnose --prometheus http://prometheus:9090 --cluster east
      disagg-node diagnose --since 2h --model llama --json
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.host.linear_algebra import one_thread
    from disagg_cluster.host.spans import timestamp
    from disagg_cluster.planner.diagnose.families import FAMILIES
    from disagg_cluster.planner.diagnose.reading.rolling_diagnosis import RollingDiagnosis
    from disagg_cluster.planner.diagnose.reading.rolling_series import RollingSeries
    from disagg_cluster.planner.diagnose.reading.series_queries import NoSeriesError, SeriesQueries
    from disagg_cluster.planner.diagnose.words.diagnosis_text import diagnoses_text
    from disagg_cluster.planner.diagnose.words.ttft_bars import plain
    from disagg_cluster.planner.outlook.horizons import duration
    from disagg_cluster.planner.settings.planner_file import PlannerConfig, read_planner_file
    from disagg_cluster.prometheus.prometheus_api import Prometheus

    if not _LEAST_SECONDS <= since_seconds <= _MOST_SECONDS:
        message = f"--since: {duration(since_seconds)} is too short or too long: 2m to 6h"
        raise click.UsageError(message)
    config = PlannerConfig() if file is None else read_planner_file(file)
    access = _access(config, url, headers, http_config)
    one_thread()
    progress = Progress()
    with closing(Prometheus(access.url, access.headers, access.tls)) as prometheus:
        queries = SeriesQueries(prometheus, FAMILIES, cluster or config.cluster)
        rolling = RollingDiagnosis(
            RollingSeries(queries, since_seconds, progress.say),
            lambda key: config.targets_of(config.of_model(key.model_name, key.engine_namespace)),
        )

        def answer() -> str:
            now_seconds = time.time()
            progress.say("asking Prometheus")
            try:
                with named_prometheus():
                    found = rolling.diagnose(now_seconds)
            except NoSeriesError as error:
                raise NoSeriesError(f"{access.url}: {error}") from error
            finally:
                progress.end()
            selected = _selected(found, model, access.url)
            if as_json:
                return _json(selected, now_seconds, access.url, indent=None if watch else 2)
            head = f"{timestamp(now_seconds)}, last {duration(since_seconds)}\n\n" if watch else ""
            return head + diagnoses_text(selected, _painted if _coloured() else plain)

        if watch:
            _watch(answer, as_json)
        else:
            click.echo(answer())


def _access(
    config: PlannerConfig, url: str | None, headers: Sequence[str], http_config: Path | None
) -> PrometheusAccess:
    """Access to Prometheus from the options, or else from the planner file."""
    settings = config.prometheus
    if url is None and http_config is None and settings.http_config is not None:
        http_config = Path(settings.http_config)
    return access_of(url or settings.url, headers, http_config)


def _selected(found: Diagnoses, model: str | None, url: str) -> Diagnoses:
    selected = tuple(each for each in found if model in (None, each.model.model_name))
    if selected:
        return selected
    there = ", ".join(sorted({repr(each.model.model_name) for each in found}))
    raise NothingServedError(
        f"{url} knows no model {model!r}; it knows {there}"
        if there
        else f"{url}: no engine says which model it serves; see `disagg-node doctor` on its node"
    )


def _json(found: Diagnoses, now_seconds: float, url: str, indent: int | None) -> str:
    from disagg_cluster.host.spans import timestamp
    from disagg_cluster.planner.diagnose.words.diagnosis_values import diagnosis_value

    whole = {
        "made_at": timestamp(now_seconds),
        "source": url,
        "models": [diagnosis_value(each) for each in found],
    }
    return json.dumps(whole, indent=indent, allow_nan=False)


def _watch(answer: Callable[[], str], as_json: bool) -> None:
    """Repeat and show a diagnosis; failures are shown and retried."""
    from disagg_cluster.prometheus.prometheus_api import PrometheusError

    screen = sys.stdout.isatty() and not as_json
    try:
        while True:
            due_seconds = time.monotonic() + _WATCH_SECONDS
            try:
                shown = answer()
            except (PrometheusError, NothingServedError) as error:
                click.echo(f"disagg-node: {escaped_lines(str(error))}", err=True)
            else:
                click.echo(f"{_CLEAR if screen else ''}{shown}", color=True if screen else None)
                if not screen and not as_json:
                    click.echo()
            time.sleep(max(0.0, due_seconds - time.monotonic()))
    except KeyboardInterrupt:
        click.echo(err=True)


def _coloured() -> bool:
    forced = os.environ.get("FORCE_COLOR", "0") not in ("", "0")
    return (forced or sys.stdout.isatty()) and not os.environ.get("NO_COLOR")


def _painted(part: TtftPart, text: str) -> str:
    return click.style(text, fg=_COLOURS[part.name])
