"""Load from a Prometheus-compatible API: Prometheus, Thanos, Mimir, VictoriaMetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.history.history_queries import (
    ARRIVALS,
    CACHED_TOKENS,
    CAPACITY_USED,
    DECODE_REJECTIONS,
    ENDS,
    GPU_SECONDS,
    HISTORY_QUERIES,
    RECORDED_EVERY_SECONDS,
    REJECTIONS,
    TOKENS,
    HistoryQuery,
    SampleSource,
    clusters,
    present,
    worked,
)
from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey, demanded
from disagg_cluster.planner.history.load_series import Floats, LoadSeries
from disagg_cluster.planner.history.range_reader import (
    Found,
    RangePart,
    RangeQueries,
    RangeReader,
    spans,
)
from disagg_cluster.prometheus.prometheus_api import PrometheusError

_PRESENT = "present"
_PRESENT_POINTS_A_PART = 48
_LABELS = ("cluster", "model_name", "engine_namespace")
_FURTHER_LABELS = ("phase", "role")


class NoPastLoadError(PrometheusError):
    """A server answers but has no past load; the text says what is missing."""


class NoLoadYetError(NoPastLoadError):
    """Nodes are scraped, and none of their engines has computed anything yet: nothing is wrong."""


@dataclass(frozen=True, slots=True)
class PrometheusHistory:
    """Reads the load of every model.

    The value at the end of a step is the rate in it; a step without a value is a gap. Counter
    resets are handled by the server. Recorded series are read first; for steps in which a cluster
    has nodes but no recorded load, the nodes' own series are read.

    Args:
        prometheus: The client.
        say: Called with a line of progress.
        deadline_seconds: Time limit of each answer.
        read_seconds: Time limit of the whole read.
        recorded_every_seconds: How often the rules of disagg-recording-history.yaml are evaluated.
    """

    prometheus: RangeQueries
    say: Callable[[str], None] = lambda _line: None
    deadline_seconds: float = 60.0
    read_seconds: float = 600.0
    recorded_every_seconds: float = RECORDED_EVERY_SECONDS

    def read(self, request: HistoryRequest) -> list[LoadHistory]:
        """Read everything; models without any tokens in the range are left out.

        Raises:
            NoLoadYetError: No engine has served anything yet.
            NoPastLoadError: The server has no series of disagg-node, or they say no tokens.
            PrometheusError: No answer in time, or an error other than a size limit.
        """
        reader = RangeReader(
            self.prometheus,
            request,
            (*_LABELS, *_FURTHER_LABELS),
            self.deadline_seconds,
            self.read_seconds,
            self.say,
        )
        window_seconds = max(request.step_seconds, self.recorded_every_seconds)
        source = SampleSource(request.cluster, window_seconds)
        recorded_parts = _parts(request, partial(HistoryQuery.recorded, source=source))
        parts = [*recorded_parts, *_presence_parts(request, source)]
        found = reader.read(parts, "what is recorded")
        there = _by_cluster(found.pop(_PRESENT))
        recorded = _by_cluster(found[TOKENS.record])
        nothing = np.zeros(request.steps, dtype=np.bool_)
        for cluster, present_at in there.items():
            missing = present_at & ~recorded.get(cluster, nothing)
            if missing.any():
                nodes = SampleSource(cluster, request.step_seconds)
                raw = _parts(request, partial(HistoryQuery.from_nodes, source=nodes), missing)
                more = reader.read(list(raw), f"series of the nodes of {cluster or 'the cluster'}")
                _fill(found, more, recorded.get(cluster, nothing))
        keys = sorted({LoadKey(*labels[:3]) for labels in found[TOKENS.record]})
        if not keys:
            raise self._without_history(request, set(there))
        return [_history(key, found, request) for key in keys]

    def _without_history(self, request: HistoryRequest, there: set[str]) -> NoPastLoadError:
        """Say why there is no history, and what to do."""
        if there:
            return NoPastLoadError(
                "there are token counters, but none has two samples within five minutes: scrape "
                "the nodes at least every two minutes"
            )
        known = self._clusters_with(clusters(), "which clusters there are", request)
        wanted = request.cluster
        if known and wanted is not None and wanted not in known:
            names = ", ".join(repr(name) for name in sorted(known))
            return NoPastLoadError(f"there is no cluster {wanted!r}, only {names}")
        worked_there = worked(SampleSource(wanted))
        if known and not self._clusters_with(worked_there, "whether engines worked", request):
            ended = datetime.fromtimestamp(request.last_seconds, UTC)
            return NoLoadYetError(
                "nodes are scraped, but no engine had served a request by "
                f"{ended:%Y-%m-%d %H:%M} UTC, where the last whole step ends: there is no "
                "load to forecast from yet"
            )
        if known:
            return NoPastLoadError(
                "nodes are scraped, but none reports tokens: docs/engine-pages.md says what each "
                "engine must report for that"
            )
        return NoPastLoadError(
            "there are no series of disagg-node in that time: Prometheus must scrape the nodes, or "
            "receive cluster.*:disagg_.+, and keep it for that long"
        )

    def _clusters_with(self, expr: str, what: str, request: HistoryRequest) -> set[str]:
        """Clusters for which an expression has a value now and then in the range, or at its end."""
        reader = RangeReader(
            self.prometheus,
            request,
            ("cluster",),
            self.deadline_seconds,
            self.read_seconds,
            self.say,
        )
        # A cluster that is younger than the distance of sparse points is seen at the last one only.
        sparse = RangePart("clusters", expr, 0, request.steps, _stride(request.steps))
        last = RangePart("clusters", expr, request.steps - 1, 1)
        return {labels[0] for labels in reader.read([sparse, last], what)["clusters"]}


def _parts(
    request: HistoryRequest,
    expr: Callable[[HistoryQuery], str],
    wanted: NDArray[np.bool_] | None = None,
) -> Iterator[RangePart]:
    """Yield all quantities for all parts of the range, or for those with a wanted step."""
    for first, count in spans(request.steps):
        if wanted is None or wanted[first : first + count].any():
            for query in HISTORY_QUERIES:
                yield RangePart(query.record, expr(query), first, count)


def _presence_parts(request: HistoryRequest, source: SampleSource) -> Iterator[RangePart]:
    """Yield sparse queries of whether there are nodes."""
    for first, count in spans(request.steps):
        yield RangePart(_PRESENT, present(source), first, count, _stride(count))


def _stride(steps: int) -> int:
    return max(1, steps // _PRESENT_POINTS_A_PART)


def _by_cluster(found: Found) -> dict[str, NDArray[np.bool_]]:
    """For each cluster, the steps at which any series has a value."""
    known: dict[str, NDArray[np.bool_]] = {}
    for labels, values in found.items():
        there = np.isfinite(values)
        known[labels[0]] = known[labels[0]] | there if labels[0] in known else there
    return known


def _fill(
    found: Mapping[str, Found], more: Mapping[str, Found], recorded: NDArray[np.bool_]
) -> None:
    """Add a cluster's further values where none was recorded."""
    for name, series in more.items():
        for labels, values in series.items():
            of = found[name].setdefault(labels, np.full(len(recorded), np.nan))
            of[~recorded] = values[~recorded]


def _history(key: LoadKey, found: Mapping[str, Found], request: HistoryRequest) -> LoadHistory:
    labels = (key.cluster, key.model_name, key.engine_namespace)

    def values(query: HistoryQuery, phase: str = "", role: str = "") -> Floats | None:
        return found[query.record].get((*labels, phase, role))

    def series(of: Floats | None) -> LoadSeries | None:
        if of is None or not np.isfinite(of).any():
            return None
        return LoadSeries(request.first_seconds, request.step_seconds, of)

    unknown = np.full(request.steps, np.nan)
    arrived = _or_unknown(values(ARRIVALS), unknown)
    refused = values(REJECTIONS)
    # Their prompts were computed, or would have been: only outputs are missing.
    after_prefill = _or_unknown(values(DECODE_REJECTIONS), unknown)
    unserved = {
        "prefill": _or_unknown(refused, unknown) - np.nan_to_num(after_prefill),
        "decode": _or_unknown(refused, unknown),
    }
    ended = _or_unknown(values(ENDS), unknown)

    def used(phase: str) -> Floats:
        # Mixed engines serve both phases in one step.
        roles = (
            _or_unknown(values(CAPACITY_USED, role=role), unknown) for role in (phase, "mixed")
        )
        return np.fmax(*roles)

    def demand(served: Floats, phase: str) -> Floats:
        # No more requests reach decode engines than full prefill engines let through.
        full = np.fmax(used("prefill"), used(phase)) >= 1.0
        return demanded(served, arrived, ended, unserved[phase], full)

    def tokens(phase: str) -> LoadSeries:
        served = _or_unknown(values(TOKENS, phase), unknown)
        return LoadSeries(request.first_seconds, request.step_seconds, demand(served, phase))

    return LoadHistory(
        key,
        tokens("prefill"),
        tokens("decode"),
        series(arrived),
        series(values(GPU_SECONDS, "prefill")),
        series(values(GPU_SECONDS, "decode")),
        rejections=series(refused),
        cached_tokens=series(demand(_or_unknown(values(CACHED_TOKENS), unknown), "prefill")),
        prefill_capacity_used=series(used("prefill")),
        decode_capacity_used=series(used("decode")),
    )


def _or_unknown(values: Floats | None, unknown: Floats) -> Floats:
    return unknown if values is None else values
