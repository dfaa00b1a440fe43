"""What nodes exported last that showed their GPUs minutes ago and do not now."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from disagg_cluster.planner.capacity.learned.cost_families import NodeId, Sample, node_id
from disagg_cluster.planner.history.history_queries import SampleSource, range_of
from disagg_cluster.planner.history.range_reader import RangeQueries
from disagg_cluster.prometheus.promql import any_matcher

UNSEEN_SECONDS = 900.0
"""How long the last samples of a node hold that is not seen, as in the recording rules."""

_GPUS = "disagg_gpu_info"
# Samples of one scrape: finer than any interval at which nodes are scraped is not needed.
_STEP_SECONDS = 15.0
_NODES_A_QUERY = 50


@dataclass(frozen=True, slots=True)
class UnseenNodes:
    """The nodes, and their last samples by family."""

    nodes: Set[NodeId] = frozenset()
    samples: Mapping[str, list[Sample]] = field(default_factory=dict)

    def added_to(self, families: Mapping[str, list[Sample]]) -> dict[str, list[Sample]]:
        """Present samples with those of these nodes, which replace what they still show."""
        return {
            name: [
                *(each for each in present if node_id(each[0]) not in self.nodes),
                *self.samples.get(name, ()),
            ]
            for name, present in families.items()
        }


@dataclass(frozen=True, slots=True)
class UnseenNodesReader:
    """Finds unseen nodes by their label `node`, and reads what they exported last.

    An engine that was gone before its node was last seen is not among it.

    Args:
        prometheus: The client.
        source: Which clusters' samples.
        deadline_seconds: For each answer.
    """

    prometheus: RangeQueries
    source: SampleSource
    deadline_seconds: float

    def read(self, families: Iterable[str], now_seconds: float) -> UnseenNodes:
        """The last samples of these families; raises as the client."""
        nodes = self._nodes(now_seconds)
        samples: dict[str, list[Sample]] = defaultdict(list)
        names = sorted({name for _, name in nodes})
        for first in range(0, len(names), _NODES_A_QUERY):
            some = names[first : first + _NODES_A_QUERY]
            last: dict[NodeId, float] = {}
            for labels, at, _ in self._last(_GPUS, some, now_seconds):
                last[node_id(labels)] = max(at, last.get(node_id(labels), at))
            for family in families:
                samples[family] += [
                    (labels, value)
                    for labels, at, value in self._last(family, some, now_seconds)
                    if node_id(labels) in nodes and last.get(node_id(labels)) == at
                ]
        return UnseenNodes(nodes, samples)

    def _nodes(self, now_seconds: float) -> Set[NodeId]:
        gpus, lasting = self.source.of(_GPUS), range_of(UNSEEN_SECONDS)
        expr = (
            f"count by (cluster, node) (last_over_time({gpus}[{lasting}]))"
            f" unless on (cluster, node) {gpus}"
        )
        found = self.prometheus.query_range(
            expr, now_seconds, now_seconds, _STEP_SECONDS, self.deadline_seconds
        )
        return {node_id(each.labels) for each in found if each.labels.get("node")}

    def _last(
        self, family: str, nodes: Iterable[str], now_seconds: float
    ) -> Iterator[tuple[Mapping[str, str], float, float]]:
        """The last sample of each series, with its time."""
        for series in self.prometheus.query_range(
            self.source.of(family, any_matcher("node", nodes)),
            now_seconds - UNSEEN_SECONDS,
            now_seconds,
            _STEP_SECONDS,
            self.deadline_seconds,
        ):
            for at, value in series.values[-1:]:
                if math.isfinite(value):
                    yield series.labels, at, value
