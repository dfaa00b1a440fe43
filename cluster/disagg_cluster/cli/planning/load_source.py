"""Sources of past load for the commands: a Prometheus, a CSV file or a request log."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from disagg_cluster.cli.daemon_page import http_config_option
from disagg_cluster.cli.planning.progress import Progress
from disagg_cluster.cli.prometheus_access import (
    DEFAULT_URL,
    access_of,
    header_option,
    named_prometheus,
)
from disagg_exporter.errors import DisaggError

if TYPE_CHECKING:
    from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
    from disagg_cluster.planner.advice.interference import Interference
    from disagg_cluster.planner.history.history_request import HistoryRequest
    from disagg_cluster.planner.history.load_history import LoadHistory
    from disagg_cluster.planner.history.prometheus_history import PrometheusHistory
    from disagg_cluster.prometheus.prometheus_api import Prometheus

DEFAULT_SINCE = "14d"
_UNITS_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class NoLoadError(DisaggError):
    """A source holds no load; the message says what to check."""


def span(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Seconds of a span option such as 90s, 5m, 6h or 1d; None if not given."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if found is None or int(found[1]) == 0:
        message = f"{text!r} is no length of time: give one such as 5m, 6h or 1d"
        raise click.BadParameter(message, ctx, param)
    return float(int(found[1]) * _UNITS_SECONDS[found[2]])


def spans(ctx: click.Context, param: click.Parameter, text: str) -> tuple[float, ...]:
    """Seconds of comma-separated spans, sorted, without duplicates."""
    found = {span(ctx, param, each) for each in text.split(",")}
    return tuple(sorted(each for each in found if each is not None))


@dataclass(frozen=True, slots=True)
class LoadSource:
    """The source of past load selected by the options."""

    url: str | None
    csv: Path | None
    request_log: Path | None
    since: str | None
    step_seconds: float | None
    cluster: str | None
    model: str | None
    headers: Sequence[str]
    http_config: Path | None

    @property
    def name(self) -> str:
        """Its display name."""
        return str(self.csv or self.request_log or self.url or DEFAULT_URL)

    def read(self, now_seconds: float, progress: Progress) -> list[LoadHistory]:
        """Read the load; from a live source, up to now.

        Raises:
            UsageError: Conflicting options.
            HistoryFileError: A file that holds no valid load.
            PrometheusError: No answer, or a refusal.
            NoLoadError: There is no load in it.
            LoadSpanError: The requested time holds no step, or too many.
        """
        from disagg_cluster.host.linear_algebra import one_thread
        from disagg_cluster.planner.history.history_request import DEFAULT_STEP_SECONDS
        from disagg_cluster.planner.history.request_log import read_request_log
        from disagg_cluster.planner.history.trace_csv import read_trace

        one_thread()
        given = [each for each in (self.url, self.csv, self.request_log) if each is not None]
        if len(given) > 1:
            raise click.UsageError("give one of --prometheus, --csv and --requests")
        if self.csv is None and self.request_log is None:
            return self._from_prometheus(now_seconds, progress)
        of_prometheus = {
            "--since": self.since,
            "--cluster": self.cluster,
            "--model": self.model,
            "--header": self.headers or None,
        }
        for option, value in of_prometheus.items():
            if value is not None:
                raise click.UsageError(f"{option} is for --prometheus; a file is read whole")
        if self.request_log is not None:
            return [read_request_log(self.request_log, self.step_seconds or DEFAULT_STEP_SECONDS)]
        assert self.csv is not None
        if self.step_seconds is not None:
            raise click.UsageError("--step is not for --csv: the step is that of its times")
        return [read_trace(self.csv)]

    @property
    def is_file(self) -> bool:
        """Whether the load comes from a file, which has no data on engines."""
        return self.csv is not None or self.request_log is not None

    def engines(self, now_seconds: float) -> ClusterEngines:
        """The running engines; none from a file.

        Raises:
            PrometheusError: No answer, or a refusal.
        """
        from disagg_cluster.planner.advice.cluster_engines import ClusterEngines, read_engines

        if self.is_file:
            return ClusterEngines()
        with self._prometheus() as prometheus:
            return read_engines(prometheus, self.cluster, now_seconds)[0]

    def engines_and_interference(self, now_seconds: float) -> tuple[ClusterEngines, Interference]:
        """The running engines and their mixed steps' cost in the last day; raises as `engines`."""
        from disagg_cluster.planner.advice.cluster_engines import ClusterEngines, read_engines
        from disagg_cluster.planner.advice.interference import read_interference

        if self.is_file:
            return ClusterEngines(), {}
        with self._prometheus() as prometheus:
            engines, families = read_engines(prometheus, self.cluster, now_seconds)
            return engines, read_interference(prometheus, families, self.cluster, now_seconds)

    @contextmanager
    def _prometheus(self) -> Iterator[Prometheus]:
        from disagg_cluster.prometheus.prometheus_api import Prometheus

        access = access_of(self.url or DEFAULT_URL, self.headers, self.http_config)
        with closing(Prometheus(access.url, access.headers, access.tls)) as prometheus:
            yield prometheus

    def _from_prometheus(self, now_seconds: float, progress: Progress) -> list[LoadHistory]:
        from disagg_cluster.inspect.report.past import parse_since
        from disagg_cluster.planner.history.history_request import (
            DEFAULT_STEP_SECONDS,
            HistoryRequest,
        )
        from disagg_cluster.planner.history.prometheus_history import PrometheusHistory
        from disagg_cluster.prometheus.prometheus_api import Prometheus

        access = access_of(self.url or DEFAULT_URL, self.headers, self.http_config)
        since = self.since or DEFAULT_SINCE
        request = HistoryRequest(
            now_seconds - parse_since(since),
            now_seconds,
            self.step_seconds or DEFAULT_STEP_SECONDS,
            self.cluster,
        )
        with closing(Prometheus(access.url, access.headers, access.tls)) as prometheus:
            progress.say("asking Prometheus")
            try:
                with named_prometheus():
                    return past_loads(
                        PrometheusHistory(prometheus, progress.say),
                        request,
                        self.model,
                        access.url,
                        f"the last {since}",
                    )
            finally:
                progress.end()


def past_loads(
    server: PrometheusHistory, request: HistoryRequest, model: str | None, url: str, when: str
) -> list[LoadHistory]:
    """The load of each model, or of the named one; `when` describes the time for messages.

    Raises:
        PrometheusError: No answer, or a refusal.
        NoLoadError: There is none: it says which clusters and models there are, or what to check.
    """
    from disagg_cluster.planner.history.prometheus_history import NoPastLoadError

    try:
        found = server.read(request)
    except NoPastLoadError as error:
        raise NoLoadError(f"{url}, {when}: {error}") from error
    wanted = [each for each in found if model in (None, each.key.model_name)]
    if not wanted:
        there = ", ".join(sorted({repr(each.key.model_name) for each in found}))
        raise NoLoadError(f"{url} knows no model {model!r} in {when}; it knows {there}")
    return wanted


def source_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a load source, passed to the command as `source`."""
    return _with_source(command, server=DEFAULT_URL, cluster="each of them")


def planned_source_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command with a planner file (`read_planned_load`)."""
    of_file = "that of the planner file"
    return _with_source(command, server=of_file, cluster=of_file)


def _with_source(command: Callable[..., None], *, server: str, cluster: str) -> Callable[..., None]:
    @functools.wraps(command)
    def packed(**given: Any) -> None:
        source = LoadSource(**{each.name: given.pop(each.name) for each in fields(LoadSource)})
        command(source=source, **given)

    for option in reversed(_options(server, cluster)):
        packed = option(packed)
    return packed


def _options(server: str, cluster: str) -> Sequence[Callable[..., Any]]:
    """The options of a load source; the arguments say what is read where none is given."""
    return (
        click.option(
            "--prometheus",
            "url",
            metavar="URL",
            help=f"A Prometheus, or a server with its API.  [default: {server}]",
        ),
        click.option(
            "--csv",
            type=click.Path(path_type=Path),
            help="A CSV file with t_s, requests_per_s, prompt_tokens_per_s, output_tokens_per_s.",
        ),
        click.option(
            "--requests",
            "request_log",
            type=click.Path(path_type=Path),
            help="A request log as JSON lines: timestamp (ms), input_length, output_length.",
        ),
        click.option(
            "--since", metavar="SPAN", help=f"How far back to read.  [default: {DEFAULT_SINCE}]"
        ),
        click.option(
            "--step",
            "step_seconds",
            callback=span,
            metavar="SPAN",
            help="Length of a step.  [default: 60s]",
        ),
        click.option("--cluster", help=f"Only this cluster.  [default: {cluster}]"),
        click.option("--model", help="Only this model.  [default: each of them]"),
        header_option,
        http_config_option,
    )
