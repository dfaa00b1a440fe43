from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.diagnose.evidence.series_window import SeriesWindow
from disagg_cluster.planner.diagnose.reading.rolling_series import RollingSeries
from disagg_cluster.planner.diagnose.reading.series_queries import (
    MOST_SERIES,
    NoSeriesError,
    SeriesQueries,
    TooManySeriesError,
)
from disagg_cluster.prometheus.prometheus_api import NoAnswerError, PrometheusError, Samples

FAMILIES = ("disagg_engine_up", "disagg_gpu_info")
KEPT_SECONDS = 600.0
Labels = tuple[tuple[str, str], ...]


@dataclass
class Server:
    """Serves samples of series up to `now`, in answers of at most `most` samples.

    `recorded` are clusters of which it has recorded series only.
    """

    series: dict[tuple[str, Labels], dict[float, float]]
    now: float = np.inf
    most: int = 10**9
    down: bool = False
    counted: int | None = None
    recorded: tuple[str, ...] = ()
    asked: list[tuple[str, float]] = field(default_factory=list)

    def query_range(self, expr: str, *_: float) -> list[Samples]:
        """Number of series of a family, or the number that the test sets; or the clusters."""
        if self.down:
            raise NoAnswerError("no answer")
        if "by (cluster)" in expr:
            there = {dict(labels)["cluster"] for _, labels in self.series} | {*self.recorded}
            return [Samples({"cluster": each}, ((0.0, 1.0),)) for each in there]
        counts: dict[str, int] = {}
        for name, labels in self.series:
            if _matches(expr, name, dict(labels)):
                counts[name] = counts.get(name, 0) + 1
        told = counts if self.counted is None else dict.fromkeys(counts, self.counted)
        return [Samples({"__name__": name}, ((0.0, float(n)),)) for name, n in told.items()]

    def query_samples(self, selector: str, at_seconds: float, _deadline: float) -> list[Samples]:
        if self.down:
            raise NoAnswerError("no answer")
        found = re.fullmatch(r"(.+)\[(\d+)(ms|m)\]", selector)
        assert found is not None
        seconds = int(found[2]) * {"ms": 0.001, "m": 60.0}[found[3]]
        self.asked.append((found[1], seconds))
        answer = [
            Samples({"__name__": name, **dict(labels)}, tuple(sorted(told)))
            for (name, labels), samples in self.series.items()
            if _matches(found[1], name, dict(labels))
            for told in [
                [
                    (t, v)
                    for t, v in samples.items()
                    if at_seconds - seconds <= t <= at_seconds and t <= self.now
                ]
            ]
            if told
        ]
        if sum(len(each.values) for each in answer) > self.most:
            raise PrometheusError("query processing would load too many samples into memory")
        return answer


def _matches(expr: str, name: str, labels: Mapping[str, str]) -> bool:
    names = re.search(r'__name__=~"([^"]+)"', expr)
    cluster = re.search(r'cluster="([^"]+)"', expr)
    assert names is not None
    return name in names[1].split("|") and (cluster is None or labels["cluster"] == cluster[1])


def labels(node: str, cluster: str = "east") -> Labels:
    return ("cluster", cluster), ("node", node), ("instance", f"{node}:9847"), ("engine", "e0")


def scraped(
    *nodes: str, end: int = 1800, every: int = 15
) -> dict[tuple[str, Labels], dict[float, float]]:
    """Both families of each node, each with its own scrape times and values."""
    return {
        (family, labels(node)): {float(t + at): 1000.0 * place + t for t in range(0, end, every)}
        for at, node in enumerate(nodes)
        for place, family in enumerate(FAMILIES)
    }


def rolling(server: Server, cluster: str | None = None) -> RollingSeries:
    return RollingSeries(SeriesQueries(server, FAMILIES, cluster), KEPT_SECONDS)


def told(window: SeriesWindow) -> dict[tuple[str, Labels], dict[float, float]]:
    return {
        (family, tuple(each.labels.items())): dict(
            zip(each.times_seconds.tolist(), each.values.tolist(), strict=True)
        )
        for family, several in window.families.items()
        for each in several
    }


def within(
    server: Server, begin: float, end: float
) -> dict[tuple[str, Labels], dict[float, float]]:
    known = {
        key: {t: v for t, v in samples.items() if begin <= t <= min(end, server.now)}
        for key, samples in server.series.items()
    }
    return {key: samples for key, samples in known.items() if samples}


@given(
    rounds=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    gone=st.integers(0, 1800),
    gap=st.tuples(st.integers(0, 1800), st.integers(0, 300)),
)
def test_each_round_returns_the_same_samples_as_a_full_read_of_its_window(
    rounds: list[int], gone: int, gap: tuple[int, int]
) -> None:
    """One node disappears meanwhile, and one has a gap."""
    series = scraped("a", "b", "c")
    for key in [(family, labels("b")) for family in FAMILIES]:
        series[key] = {t: v for t, v in series[key].items() if t < gone}
    holed = FAMILIES[0], labels("c")
    series[holed] = {t: v for t, v in series[holed].items() if not gap[0] <= t <= sum(gap)}
    server = Server(series)
    reader = rolling(server)

    for now in 1000.0 + np.cumsum(rounds):
        server.now = now
        window = reader.read(now)

        assert told(window) == within(server, now - KEPT_SECONDS, now)


def test_later_rounds_query_only_recent_samples() -> None:
    server = Server(scraped("a"))
    reader = rolling(server)

    server.now = 900.0
    reader.read(900.0)
    server.now = 915.0
    reader.read(915.0)

    assert [seconds for _, seconds in server.asked] == [600.0, 45.0]


def test_the_window_is_read_anew_after_the_clock_was_set_back() -> None:
    server = Server(scraped("a", end=3600))
    reader = rolling(server)
    reader.read(3600.0)

    for now in (900.0, 915.0):
        window = reader.read(now)
        assert told(window) == within(server, window.begin_seconds, now)
        assert window.begin_seconds == now - KEPT_SECONDS


def test_samples_that_arrive_late_are_still_read() -> None:
    """A server that receives samples through a queue: nothing arrived for four minutes."""
    server = Server(scraped("a"))
    reader = rolling(server)
    server.now = 600.0
    for now in range(600, 840, 15):
        reader.read(float(now))

    server.now = 840.0
    window = reader.read(840.0)

    assert told(window) == within(server, 240.0, 840.0)


def test_the_round_after_a_failed_one_reads_the_samples_that_both_missed() -> None:
    server = Server(scraped("a"))
    reader = rolling(server)
    reader.read(700.0)
    server.down = True
    with pytest.raises(NoAnswerError):
        reader.read(715.0)

    server.down = False

    assert told(reader.read(730.0)) == within(server, 130.0, 730.0)


def test_a_query_refused_as_too_large_is_split_in_halves() -> None:
    server = Server(scraped("a", "b"), most=60)
    reader = rolling(server)

    assert told(reader.read(900.0)) == within(server, 300.0, 900.0)

    assert max(seconds for _, seconds in server.asked[-4:]) <= 300.0


def test_families_share_one_query_only_if_the_answer_is_small() -> None:
    few, many = Server(scraped("a")), Server(scraped("a"), counted=20_000)
    rolling(few).read(900.0)
    rolling(many).read(900.0)

    assert [selector.count("|") for selector, _ in few.asked] == [1]
    assert {selector.count("|") for selector, _ in many.asked} == {0}
    assert max(seconds for _, seconds in many.asked) == 300.0


def test_only_the_named_cluster_is_read() -> None:
    series = scraped("a") | {("disagg_engine_up", labels("b", "west")): {890.0: 1.0}}
    server = Server(series)

    assert told(rolling(server, "west").read(900.0)) == {
        ("disagg_engine_up", labels("b", "west")): {890.0: 1.0}
    }


def test_a_server_without_series_of_the_nodes_of_a_cluster_is_an_error() -> None:
    for server in (Server({}), Server(scraped("a"), recorded=("north",))):
        with pytest.raises(NoSeriesError, match=r"of a cluster 'north'.*must scrape the nodes"):
            rolling(server, "north").read(900.0)


def test_the_clusters_that_there_are_are_named_where_the_given_one_is_unknown() -> None:
    server = Server(scraped("a") | {("disagg_engine_up", labels("b", "west")): {890.0: 1.0}})

    with pytest.raises(NoSeriesError, match=r"^there is no cluster 'north', only 'east', 'west'$"):
        rolling(server, "north").read(900.0)


def test_too_many_series_are_refused_before_any_sample_is_read() -> None:
    server = Server(scraped("a"), counted=MOST_SERIES)

    with pytest.raises(TooManySeriesError, match="name one cluster"):
        rolling(server).read(900.0)

    assert server.asked == []


def test_series_of_one_page_share_their_times_and_returned_windows_do_not_change() -> None:
    """So the samples of 1,000 engines fit into memory; a returned window does not change."""
    server = Server(scraped("a"))
    reader = rolling(server)
    first = reader.read(700.0)
    before = told(first)

    reader.read(900.0)

    (up,), (info,) = (first.of(family) for family in FAMILIES)
    assert up.times_seconds is info.times_seconds
    assert told(first) == before


def test_a_window_begins_at_its_first_known_sample() -> None:
    """After two minutes of scrapes the rest of the half hour is unknown, not quiet."""
    young = {key: {t: v for t, v in each.items() if t >= 780} for key, each in scraped("a").items()}

    assert rolling(Server(young)).read(900.0).begin_seconds == 780.0
    assert rolling(Server(scraped("a"))).read(900.0).begin_seconds == 300.0
