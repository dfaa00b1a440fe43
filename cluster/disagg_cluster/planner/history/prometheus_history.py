"""Load from any API that speaks as Prometheus does: Prometheus, Thanos, Mimir, VictoriaMetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.history.history_queries import (
    ARRIVALS,
    CACHED_TOKENS,
    CAPACITY_USED,
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
    """A server that answers and has no load of the past; the text says what it lacks."""


@dataclass(frozen=True, slots=True)
class PrometheusHistory:
    """Reads the load of every model.

    A value at the end of a step is the rate in it; where a server has none, the step is a gap.
    Counters that begin anew are the server's to tell. What our rules recorded is read; of steps
    of which a cluster has nodes and no recorded load, the nodes' own series are.

    Args:
        prometheus: The client.
        say: Told what is being read.
        deadline_seconds: For each answer.
        read_seconds: For everything.
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
            NoPastLoadError: Nothing of ours is there.
            PrometheusError: No answer in time, or a refusal that is not for size.
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
        parts = [*recorded_parts, *_looks(request, source)]
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
        """Why there is nothing, and the way out."""
        if there:
            return NoPastLoadError(
                "counters of tokens are there, but of none two samples in five minutes: scrape "
                "the nodes every two minutes at least"
            )
        asked = RangePart("clusters", clusters(), 0, request.steps, _stride(request.steps))
        reader = RangeReader(
            self.prometheus,
            request,
            ("cluster",),
            self.deadline_seconds,
            self.read_seconds,
            self.say,
        )
        known = {
            labels[0] for labels in reader.read([asked], "which clusters there are")["clusters"]
        }
        wanted = request.cluster
        if known and wanted is not None and wanted not in known:
            names = ", ".join(repr(name) for name in sorted(known))
            return NoPastLoadError(f"nothing of a cluster {wanted!r} is there; there is {names}")
        if known:
            return NoPastLoadError(
                "nodes are scraped, but none tells of tokens: docs/engine-pages.md says what each "
                "engine must report for that"
            )
        return NoPastLoadError(
            "nothing of disagg-node is there in that time: Prometheus must scrape the nodes, or "
            "be sent cluster.*:disagg_.+, and keep it for that long"
        )


def _parts(
    request: HistoryRequest,
    expr: Callable[[HistoryQuery], str],
    wanted: NDArray[np.bool_] | None = None,
) -> Iterator[RangePart]:
    """All quantities in all parts of the range, or in those of which some step is wanted."""
    for first, count in spans(request.steps):
        if wanted is None or wanted[first : first + count].any():
            for query in HISTORY_QUERIES:
                yield RangePart(query.record, expr(query), first, count)


def _looks(request: HistoryRequest, source: SampleSource) -> Iterator[RangePart]:
    """Whether there are nodes, now and then."""
    for first, count in spans(request.steps):
        yield RangePart(_PRESENT, present(source), first, count, _stride(count))


def _stride(steps: int) -> int:
    return max(1, steps // _PRESENT_POINTS_A_PART)


def _by_cluster(found: Found) -> dict[str, NDArray[np.bool_]]:
    """At which steps anything is known of a cluster."""
    known: dict[str, NDArray[np.bool_]] = {}
    for labels, values in found.items():
        there = np.isfinite(values)
        known[labels[0]] = known[labels[0]] | there if labels[0] in known else there
    return known


def _fill(
    found: Mapping[str, Found], more: Mapping[str, Found], recorded: NDArray[np.bool_]
) -> None:
    """Take a cluster's further values where nothing was recorded of it."""
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
    arrived = _or(values(ARRIVALS), unknown)
    refused = values(REJECTIONS)
    ended = _or(values(ENDS), unknown)

    def used(phase: str) -> Floats:
        # Mixed engines serve both phases in the same steps.
        roles = (_or(values(CAPACITY_USED, role=role), unknown) for role in (phase, "mixed"))
        return np.fmax(*roles)

    def tokens(phase: str) -> LoadSeries:
        served = _or(values(TOKENS, phase), unknown)
        asked = demanded(served, arrived, ended, _or(refused, unknown), used(phase) >= 1.0)
        return LoadSeries(request.first_seconds, request.step_seconds, asked)

    return LoadHistory(
        key,
        tokens("prefill"),
        tokens("decode"),
        series(arrived),
        series(values(GPU_SECONDS, "prefill")),
        series(values(GPU_SECONDS, "decode")),
        rejections=series(refused),
        cached_tokens=series(values(CACHED_TOKENS)),
        prefill_capacity_used=series(used("prefill")),
        decode_capacity_used=series(used("decode")),
    )


def _or(values: Floats | None, unknown: Floats) -> Floats:
    return unknown if values is None else values
