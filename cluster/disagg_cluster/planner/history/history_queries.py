"""What is asked of a Prometheus about past load, and by which rules it is recorded each minute.

The rules of `disagg-recording-history.yaml` are written from here (`python -m
scripts.history_rules`): what nobody recorded is asked for by the very expression of its rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

RECORDED_EVERY_SECONDS = 60.0
"""How often the rules are evaluated, and the window that they look back over."""

_LONG_WINDOW_SECONDS = 300.0
_OWNER = "cluster, model_name, engine_namespace"


@dataclass(frozen=True, slots=True)
class SampleSource:
    """Which of a server's samples an expression takes: those of a cluster (None: of all).

    `window_seconds` is how far back a rate looks.
    """

    cluster: str | None = None
    window_seconds: float = RECORDED_EVERY_SECONDS

    def of(self, family: str, *matchers: str) -> str:
        """The samples of a family that match."""
        told = [*matchers]
        if self.cluster is not None:
            quoted = self.cluster.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            told.append(f'cluster="{quoted}"')
        return f"{family}{{{','.join(told)}}}" if told else family

    def rate(self, family: str, *matchers: str) -> str:
        """What a family's counters grow by a second.

        Where a node is scraped so seldom that a window has fewer than two of its samples, the last
        five minutes tell; of a node that is there no longer nothing does.
        """
        samples, window = self.of(family, *matchers), range_of(self.window_seconds)
        if self.window_seconds >= _LONG_WINDOW_SECONDS:
            return f"rate({samples}[{window}])"
        return f"rate({samples}[{window}])\nor rate({samples}[5m]) and {samples}"


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """One quantity by cluster, model and namespace.

    `record` is the name of its rule, `what` its comment there, `by` the label that its series
    have beside the owner's.
    """

    record: str
    what: str
    raw: Callable[[SampleSource], str]
    by: str = ""

    def from_nodes(self, source: SampleSource) -> str:
        """What the rule records, from the nodes' own series."""
        return self.raw(source)

    def recorded(self, source: SampleSource) -> str:
        """What was recorded in a window, in the mean: its only value, if that is a minute.

        Of several servers that recorded the same one is taken.
        """
        labels = f"{_OWNER}, {self.by}" if self.by else _OWNER
        mean = f"avg_over_time({source.of(self.record)}[{range_of(source.window_seconds)}])"
        return f"max by ({labels}) ({mean})"


def range_of(seconds: float) -> str:
    """Seconds as a range of PromQL."""
    milliseconds = round(seconds * 1000)
    whole_minutes, rest = divmod(milliseconds, 60_000)
    return f"{milliseconds}ms" if rest else f"{whole_minutes}m"


def _sum(inner: str, *further: str) -> str:
    lines = "\n".join(f"  {line}" for line in inner.splitlines())
    return f"sum by ({', '.join((_OWNER, *further))}) (\n{lines}\n)"


def _tokens(source: SampleSource) -> str:
    return _sum(source.rate("disagg_node_phase_tokens_total"), "phase")


def _gpu_seconds(source: SampleSource) -> str:
    phases = 'phase=~"prefill|decode"'
    return _sum(source.rate("disagg_node_phase_seconds_total", phases), "phase")


def _arrivals(source: SampleSource) -> str:
    """By the best source that saw any; of none that did, 0.

    A source that is gone stays at what it counted. Frontends and routers count what engines behind
    them refuse; engines leave it out, so theirs is added.
    """

    def told(by: str) -> str:
        return _sum(source.rate("disagg_request_arrivals_total", f'source="{by}"'))

    refused = source.rate("disagg_request_rejections_total", 'source="engine"')
    arrived = source.rate("disagg_request_arrivals_total", 'source="engine"')
    engines = _sum(f"{arrived}\nor {refused}")
    front, router = told("frontend"), told("router")
    return f"{front} > 0\nor {router} > 0\nor {engines}\nor {router}\nor {front}"


def _rejections(source: SampleSource) -> str:
    return _sum(source.rate("disagg_request_rejections_total"))


def _ends(source: SampleSource) -> str:
    """Where engines do not say how requests ended, those that they finished."""
    by_engine = "cluster, node, engine"
    told = _sum(source.rate("disagg_request_ends_total", 'source="engine"'))
    # A disaggregated request ends at a prefill engine, too; it is one request.
    finished = source.rate("disagg_engine_finished_requests_total", 'role!="prefill"')
    models = source.of("disagg_engine_info")
    places = source.of("disagg_gpu_assignment_info")
    joined = _sum(
        f"({finished})\n"
        f"* on ({by_engine}) group_left (model_name)\n"
        f"  max by ({by_engine}, model_name) ({models})\n"
        f"* on ({by_engine}) group_left (engine_namespace)\n"
        f"  max by ({by_engine}, engine_namespace) ({places})"
    )
    front = _sum(source.rate("disagg_request_ends_total", 'source="frontend"'))
    return f"{told}\nor {joined}\nor {front}"


def _cached_tokens(source: SampleSource) -> str:
    matchers = ('role=~"prefill|mixed"', 'origin="cached"')
    return _sum(source.rate("disagg_node_prompt_tokens_total", *matchers))


def _capacity_used(source: SampleSource) -> str:
    used = _sum(source.of("disagg_node_capacity_used_gpus"), "role")
    known = _sum(source.of("disagg_node_capacity_known_gpus"), "role")
    return f"{used}\n/ ({known} > 0)"


_LEVEL = "cluster_model_namespace"

TOKENS = HistoryQuery(
    f"{_LEVEL}:disagg_phase_tokens:rate1m", "Tokens computed a second, by phase.", _tokens, "phase"
)
GPU_SECONDS = HistoryQuery(
    f"{_LEVEL}:disagg_phase_gpu_seconds:rate1m", "Busy GPUs by phase.", _gpu_seconds, "phase"
)
ARRIVALS = HistoryQuery(
    f"{_LEVEL}:disagg_request_arrivals:rate1m",
    "Requests asked for a second, those included that were refused, as far as they are counted: by "
    "the best source that saw any, frontends, routers, or the engines where requests enter.",
    _arrivals,
)
REJECTIONS = HistoryQuery(
    f"{_LEVEL}:disagg_request_rejections:rate1m",
    "How many of them were refused. No value where nobody counts that.",
    _rejections,
)
ENDS = HistoryQuery(
    f"{_LEVEL}:disagg_request_ends:rate1m",
    "Requests that ended a second, as engines say how, or else as they finished them.",
    _ends,
)
CACHED_TOKENS = HistoryQuery(
    f"{_LEVEL}:disagg_cached_prompt_tokens:rate1m",
    "Prompt tokens a second that a prefix cache spared, where engines tell it.",
    _cached_tokens,
)
CAPACITY_USED = HistoryQuery(
    f"{_LEVEL}_role:disagg_capacity_used:ratio",
    "How full the engines of a role are: at 1 what they serve is a ceiling, not what was asked. Of "
    "those whose capacity is known, however few: that of pools which people and alerts are told "
    "(cluster_role_model_namespace:disagg_capacity_used:ratio) waits for half of them.",
    _capacity_used,
    "role",
)

HISTORY_QUERIES = (
    TOKENS,
    GPU_SECONDS,
    ARRIVALS,
    REJECTIONS,
    ENDS,
    CACHED_TOKENS,
    CAPACITY_USED,
)
"""All that is kept of a load."""


def present(source: SampleSource) -> str:
    """How many counters of tokens there are, by cluster."""
    return f"count by (cluster) ({source.of('disagg_node_phase_tokens_total')})"


def clusters() -> str:
    """Everything of ours that a server has, by cluster."""
    ours = f"disagg_build_info or {TOKENS.record} or disagg_node_phase_tokens_total"
    return f"count by (cluster) ({ours})"
