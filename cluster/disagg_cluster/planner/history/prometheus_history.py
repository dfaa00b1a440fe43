"""Load from any API that speaks as Prometheus does: Prometheus, Thanos, Mimir, VictoriaMetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from disagg_cluster.planner.history.load_history import (
    LoadHistory,
    LoadKey,
    arriving,
    demanded,
)
from disagg_cluster.planner.history.load_series import Floats, LoadSeries
from disagg_cluster.prometheus.prometheus_api import PrometheusError, Samples

DEFAULT_STEP_SECONDS = 60.0
_STEPS_A_QUERY = 1440
_LEAST_STEPS_A_QUERY = 15
# How servers say that a query was too large, which a shorter one need not be.
_TOO_LARGE = ("exceed", "too many", "too long", "limit", "larger than")

_OF_MODEL = (
    "* on (cluster, node, engine, role) group_left (model_name) "
    "max by (cluster, node, engine, role, model_name) (disagg_engine_info{matchers})"
)
_QUERIES = {
    "tokens": "sum by (cluster, model_name, engine_namespace, phase) "
    "(rate(disagg_node_phase_tokens_total{matchers}[{window}]))",
    "gpus": "sum by (cluster, model_name, engine_namespace, phase) "
    '(rate(disagg_node_phase_seconds_total{{matchers_and}phase=~"prefill|decode"}[{window}]))',
    # A disaggregated request ends at a prefill engine, too; it is one request.
    "finished": "sum by (cluster, model_name) (sum by (cluster, node, engine, role) "
    '(rate(disagg_engine_finished_requests_total{{matchers_and}role!="prefill"}[{window}])) '
    f"{_OF_MODEL})",
    "in_flight": "sum by (cluster, model_name) (sum by (cluster, node, engine, role) "
    f"(disagg_engine_requests{{matchers}}) {_OF_MODEL})",
    "full": "sum by (cluster, model_name, phase) "
    '(label_replace(cluster_role_model:disagg_capacity_used:ratio{matchers}, "phase", "$1", '
    '"role", "(prefill|decode)") >= 1)',
}


class RangeQueries(Protocol):
    """What is needed of a client of Prometheus."""

    def query_range(
        self,
        expr: str,
        start_seconds: float,
        end_seconds: float,
        step_seconds: float,
        deadline_seconds: float = 60.0,
    ) -> list[Samples]:
        """Evaluate an expression at each step."""


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """What to read: the steps that lie between two times, of one cluster or (None) of all."""

    start_seconds: float
    end_seconds: float
    step_seconds: float = DEFAULT_STEP_SECONDS
    cluster: str | None = None

    @property
    def steps(self) -> int:
        """How many steps begin and end inside."""
        return max(0, round((self._last - self._first) / self.step_seconds))

    @property
    def first_seconds(self) -> float:
        """When the first step begins: on a multiple of the step."""
        return self._first

    @property
    def _first(self) -> float:
        return float(np.ceil(self.start_seconds / self.step_seconds)) * self.step_seconds

    @property
    def _last(self) -> float:
        return float(np.floor(self.end_seconds / self.step_seconds)) * self.step_seconds


@dataclass(frozen=True, slots=True)
class PrometheusHistory:
    """Reads the load of every model.

    A value at the end of a step is the rate in it; where a server has none, the step is a gap.
    Counters that begin anew are the server's to tell. Long ranges are asked in parts, and a part
    that is refused as too large is asked in halves.

    Args:
        prometheus: The client.
        say: Told what is being read.
        deadline_seconds: For each answer.
    """

    prometheus: RangeQueries
    say: Callable[[str], None] = lambda _line: None
    deadline_seconds: float = 60.0

    def read(self, request: HistoryRequest) -> list[LoadHistory]:
        """Read everything; models without any tokens in the range are left out.

        Raises:
            PrometheusError: No answer in time, or a refusal that is not for size.
        """
        if not request.steps:
            return []
        found = {name: self._series(name, request) for name in _QUERIES}
        keys = sorted({LoadKey(*labels[:3]) for labels in found["tokens"]})
        namespaces: dict[tuple[str, str], int] = {}
        for key in keys:
            pair = (key.cluster, key.model_name)
            namespaces[pair] = namespaces.get(pair, 0) + 1
        # Requests are known by model. Of two namespaces of one model nobody knows whose they are.
        return [
            _history(key, found, request, alone=namespaces[key.cluster, key.model_name] == 1)
            for key in keys
        ]

    def _series(self, name: str, request: HistoryRequest) -> dict[tuple[str, ...], Floats]:
        """By (cluster, model, namespace, phase), empty where a query does not tell."""
        expr = _expression(_QUERIES[name], request)
        found: dict[tuple[str, ...], Floats] = {}
        for first, count in _parts(request.steps):
            self.say(f"reading {name}: {first * 100 // request.steps} %")
            for each in self._asked(expr, request, first, count):
                labels = tuple(
                    each.labels.get(label, "")
                    for label in ("cluster", "model_name", "engine_namespace", "phase")
                )
                values = found.setdefault(labels, np.full(request.steps, np.nan))
                if each.values:
                    times, loads = np.asarray(each.values, dtype=np.float64).T
                    # A value at the end of a step is the step's.
                    at = np.round((times - request.first_seconds) / request.step_seconds) - 1
                    inside = (at >= 0) & (at < request.steps) & np.isfinite(loads)
                    values[at[inside].astype(np.int64)] = loads[inside]
        return found

    def _asked(
        self, expr: str, request: HistoryRequest, first: int, count: int
    ) -> Iterator[Samples]:
        begin = request.first_seconds + (first + 1) * request.step_seconds
        end = request.first_seconds + (first + count) * request.step_seconds
        try:
            yield from self.prometheus.query_range(
                expr, begin, end, request.step_seconds, self.deadline_seconds
            )
        except PrometheusError as error:
            half = count // 2
            if half < _LEAST_STEPS_A_QUERY or not any(told in str(error) for told in _TOO_LARGE):
                raise
            yield from self._asked(expr, request, first, half)
            yield from self._asked(expr, request, first + half, count - half)


def _parts(steps: int) -> Iterator[tuple[int, int]]:
    for first in range(0, steps, _STEPS_A_QUERY):
        yield first, min(_STEPS_A_QUERY, steps - first)


def _expression(query: str, request: HistoryRequest) -> str:
    matcher = ""
    if request.cluster is not None:
        quoted = request.cluster.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        matcher = f'cluster="{quoted}"'
    return (
        query.replace("{matchers_and}", f"{matcher}," if matcher else "")
        .replace("{matchers}", f"{{{matcher}}}" if matcher else "")
        .replace("{window}", f"{round(request.step_seconds * 1000)}ms")
    )


def _history(
    key: LoadKey,
    found: Mapping[str, Mapping[tuple[str, ...], Floats]],
    request: HistoryRequest,
    *,
    alone: bool,
) -> LoadHistory:
    unknown = np.full(request.steps, np.nan)
    pair = (key.cluster, key.model_name, "", "")
    finished = found["finished"].get(pair, unknown) if alone else unknown
    in_flight = found["in_flight"].get(pair, unknown) if alone else unknown
    arrived = arriving(finished, in_flight, request.step_seconds)

    def series(values: Floats) -> LoadSeries:
        return LoadSeries(request.first_seconds, request.step_seconds, values)

    def tokens(phase: str) -> LoadSeries:
        full = found["full"].get((key.cluster, key.model_name, "", phase), unknown)
        served = found["tokens"].get((*_labels(key), phase), unknown)
        return series(demanded(served, arrived, finished, np.isfinite(full)))

    def gpus(phase: str) -> LoadSeries | None:
        values = found["gpus"].get((*_labels(key), phase))
        return None if values is None else series(values)

    return LoadHistory(
        key,
        tokens("prefill"),
        tokens("decode"),
        series(arrived) if np.isfinite(arrived).any() else None,
        gpus("prefill"),
        gpus("decode"),
    )


def _labels(key: LoadKey) -> tuple[str, str, str]:
    return key.cluster, key.model_name, key.engine_namespace
