"""PromQL queries of past load, and the rules that record it each minute.

`disagg-recording-history.yaml` is generated from here (`python -m scripts.history_rules`): load
that was not recorded is queried by the expression of its rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from disagg_cluster.prometheus.promql import matcher

RECORDED_EVERY_SECONDS = 60.0
"""How often the rules are evaluated, and the window of their rates."""

_LONG_WINDOW_SECONDS = 300.0
_OWNER = "cluster, model_name, engine_namespace"


@dataclass(frozen=True, slots=True)
class SampleSource:
    """Which samples of a server an expression selects: those of a cluster (None: of all).

    `window_seconds` is the window of a rate.
    """

    cluster: str | None = None
    window_seconds: float = RECORDED_EVERY_SECONDS

    def of(self, family: str, *matchers: str) -> str:
        """Selector of the matching samples of a family."""
        selected = [*matchers]
        if self.cluster is not None:
            selected.append(matcher("cluster", self.cluster))
        return f"{family}{{{','.join(selected)}}}" if selected else family

    def rate(self, family: str, *matchers: str) -> str:
        """Per-second rate of a family's counters.

        Where a node is scraped so rarely that a window has fewer than two of its samples, the rate
        is over the last five minutes, unless the node is gone.
        """
        samples, window = self.of(family, *matchers), range_of(self.window_seconds)
        if self.window_seconds >= _LONG_WINDOW_SECONDS:
            return f"rate({samples}[{window}])"
        return f"rate({samples}[{window}])\nor rate({samples}[5m]) and {samples}"


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """One quantity by cluster, model and namespace.

    `record` is the name of its rule, `what` its comment there, `by` the additional label of its
    series.
    """

    record: str
    what: str
    raw: Callable[[SampleSource], str]
    by: str = ""

    def from_nodes(self, source: SampleSource) -> str:
        """Expression of the rule, over the nodes' own series."""
        return self.raw(source)

    def recorded(self, source: SampleSource) -> str:
        """Expression of the recorded mean over a window: a single value, if that is a minute.

        If several servers recorded the same series, one of them is used.
        """
        labels = f"{_OWNER}, {self.by}" if self.by else _OWNER
        mean = f"avg_over_time({source.of(self.record)}[{range_of(source.window_seconds)}])"
        return f"max by ({labels}) ({mean})"


def range_of(seconds: float) -> str:
    """Format seconds as a PromQL range."""
    milliseconds = round(seconds * 1000)
    whole_minutes, rest = divmod(milliseconds, 60_000)
    return f"{milliseconds}ms" if rest else f"{whole_minutes}m"


def _sum(inner: str, *further: str) -> str:
    lines = "\n".join(f"  {line}" for line in inner.splitlines())
    return f"sum by ({', '.join((_OWNER, *further))}) (\n{lines}\n)"


def _most(inner: str) -> str:
    lines = "\n".join(f"  {line}" for line in inner.splitlines())
    return f"max by ({_OWNER}) (\n{lines}\n)"


def _tokens(source: SampleSource) -> str:
    return _sum(source.rate("disagg_node_phase_tokens_total"), "phase")


def _gpu_seconds(source: SampleSource) -> str:
    phases = 'phase=~"prefill|decode"'
    return _sum(source.rate("disagg_node_phase_seconds_total", phases), "phase")


def _arrivals(source: SampleSource) -> str:
    """Arrivals from the best source that observed any; 0 if none did.

    The counter of a source that is gone stays constant, so its rate is 0. Arrivals at frontends and
    routers include requests that engines reject; those at engines do not, so rejections are added:
    not those by decode engines, whose requests have arrived at a prefill engine before.
    """

    def arrived_at(by: str) -> str:
        return _sum(source.rate("disagg_request_arrivals_total", f'source="{by}"'))

    entered = ('source="engine"', 'role!="decode"')
    refused = source.rate("disagg_request_rejections_total", *entered)
    arrived = source.rate("disagg_request_arrivals_total", 'source="engine"')
    engines = _sum(f"{arrived}\nor {refused}")
    front, router = arrived_at("frontend"), arrived_at("router")
    return f"{front} > 0\nor {router} > 0\nor {engines}\nor {router}\nor {front}"


def _rejections(source: SampleSource) -> str:
    return _sum(source.rate("disagg_request_rejections_total"))


def _decode_rejections(source: SampleSource) -> str:
    return _sum(source.rate("disagg_request_rejections_total", 'role="decode"'))


def _ends(source: SampleSource) -> str:
    """Ended requests; finished ones where engines do not report how requests end.

    Of a model whose engines report it only in part, the larger number: that of all engines.
    """
    by_engine = "cluster, node, engine"
    reported = _sum(source.rate("disagg_request_ends_total", 'source="engine"'))
    # A disaggregated request also finishes at prefill and encode engines; count it once.
    finished = source.rate("disagg_engine_finished_requests_total", 'role=~"decode|mixed"')
    models = f"timestamp({source.of('disagg_engine_info')})"
    named, places = (
        f"timestamp({source.of('disagg_gpu_assignment_info', *matchers)})"
        for matchers in (('engine_namespace!=""',), ())
    )
    # One of each, from the page scraped last: an engine with two, on two pages or GPUs, would end
    # the query for all clusters.
    one = f"(topk by ({by_engine}) (1, max by ({by_engine}"
    joined = _sum(
        f"({finished})\n"
        f"* on ({by_engine}) group_left (model_name)\n"
        f"  {one}, model_name) ({models})) ^ 0)\n"
        f"* on ({by_engine}) group_left (engine_namespace)\n"
        f"  {one}, engine_namespace) (\n"
        f"    {named}\n"
        f"    or on ({by_engine}) {places}\n"
        f"  )) ^ 0)"
    )
    front = _sum(source.rate("disagg_request_ends_total", 'source="frontend"'))
    # Both are kept apart by a label, as `or` would drop the second.
    engines = _most(f'{reported}\nor label_replace({joined}, "of", "finished", "", "")')
    return f"{engines}\nor {front}"


def _cached_tokens(source: SampleSource) -> str:
    """Prompt tokens that engines which read prompts did not compute.

    Their own cache had them, or they were loaded from outside: host memory, another engine, a store
    of KV. To decode engines whole prompts are transferred.
    """
    matchers = ('role=~"prefill|mixed"', 'origin=~"cached|transferred"')
    return _sum(source.rate("disagg_node_prompt_tokens_total", *matchers))


def _capacity_used(source: SampleSource) -> str:
    used = _sum(source.of("disagg_node_capacity_used_gpus"), "role")
    known = _sum(source.of("disagg_node_capacity_known_gpus"), "role")
    return f"{used}\n/ ({known} > 0)"


_LEVEL = "cluster_model_namespace"

TOKENS = HistoryQuery(
    f"{_LEVEL}:disagg_phase_tokens:rate1m",
    "Tokens computed per second, by phase.",
    _tokens,
    "phase",
)
GPU_SECONDS = HistoryQuery(
    f"{_LEVEL}:disagg_phase_gpu_seconds:rate1m", "Busy GPUs by phase.", _gpu_seconds, "phase"
)
ARRIVALS = HistoryQuery(
    f"{_LEVEL}:disagg_request_arrivals:rate1m",
    "Requests that arrived per second, including rejected ones as far as those are counted: from "
    "the best source that observed any, frontends, routers, or the engines where requests enter.",
    _arrivals,
)
REJECTIONS = HistoryQuery(
    f"{_LEVEL}:disagg_request_rejections:rate1m",
    "Rejected requests per second. No value where nothing counts them.",
    _rejections,
)
DECODE_REJECTIONS = HistoryQuery(
    f"{_LEVEL}:disagg_decode_rejections:rate1m",
    "Of these, those by decode engines: a prefill engine may have computed their prompts.",
    _decode_rejections,
)
ENDS = HistoryQuery(
    f"{_LEVEL}:disagg_request_ends:rate1m",
    "Requests that ended per second, as engines report it, or else those that they finished, "
    "whichever are more: not all engines of a model may report it.",
    _ends,
)
CACHED_TOKENS = HistoryQuery(
    f"{_LEVEL}:disagg_cached_prompt_tokens:rate1m",
    "Prompt tokens per second that a prefix cache saved, an engine's own or one of KV that is "
    "loaded from outside, where engines report it.",
    _cached_tokens,
)
CAPACITY_USED = HistoryQuery(
    f"{_LEVEL}_role:disagg_capacity_used:ratio",
    "Capacity used by the engines of a role: at 1 the load served is a ceiling, not the demand. "
    "Over the engines whose capacity is known, however few: the ratio for people and alerts "
    "(cluster_role_model_namespace:disagg_capacity_used:ratio) needs half of them.",
    _capacity_used,
    "role",
)

HISTORY_QUERIES = (
    TOKENS,
    GPU_SECONDS,
    ARRIVALS,
    REJECTIONS,
    DECODE_REJECTIONS,
    ENDS,
    CACHED_TOKENS,
    CAPACITY_USED,
)
"""All recorded quantities of a load."""


def present(source: SampleSource) -> str:
    """Expression of the number of token counters, by cluster."""
    return f"count by (cluster) ({source.of('disagg_node_phase_tokens_total')})"


def clusters() -> str:
    """Expression of the number of disagg-node series on a server, by cluster."""
    ours = f"disagg_build_info or {TOKENS.record} or disagg_node_phase_tokens_total"
    return f"count by (cluster) ({ours})"


def worked(source: SampleSource) -> str:
    """Expression of whether nodes have seen engines compute anything, by cluster."""
    spent = source.of("disagg_node_phase_seconds_total", 'phase=~"prefill|decode"')
    return f"max by (cluster) ({spent}) > 0"
