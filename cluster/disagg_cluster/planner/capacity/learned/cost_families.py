"""The metric families that describe an engine's step times, and how they are read."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from disagg_cluster.planner.capacity.learned.learned_costs import LearnedSteps
from disagg_cluster.planner.capacity.learned.learned_curve import extended
from disagg_exporter.model import Role

FAMILIES = (
    "disagg_engine_info",
    "disagg_gpu_assignment_info",
    "disagg_gpu_info",
    "disagg_engine_prefill_curve_tokens_per_second",
    "disagg_engine_decode_curve_seconds",
    "disagg_engine_step_cost_seconds",
    "disagg_engine_step_cost_error_seconds",
    "disagg_engine_max_num_batched_tokens",
    "disagg_engine_max_num_seqs",
    "disagg_engine_kv_cache_tokens",
    "disagg_engine_kv_cache_usage_ratio",
    "disagg_engine_requests",
    "disagg_engine_capacity_used_ratio",
    "disagg_worker_state",
    "disagg_worker_drained",
    "disagg_reassign_downtime_seconds",
)
_SERVING = {Role.PREFILL, Role.DECODE, Role.MIXED}
_POINT = re.compile(r"empty|prefill_(\d+)(?:_decode_(\d+))?|decode_(\d+)")
# The mean of so many contexts is off by more than fourfold once in a thousand times.
_LEAST_RUNNING = 8
# Exported errors hold nine times in ten.
_DEVIATIONS = 1.645

Sample = tuple[Mapping[str, str], float]
NodeId = tuple[str, str]
"""Cluster and name of a node."""

EngineId = tuple[str, str, str]
"""Cluster, node and name of an engine."""


@dataclass(frozen=True, slots=True, order=True)
class CostKey:
    """A kind of engines, all of which have the same step times."""

    model_name: str
    engine_namespace: str
    role: Role
    gpu_name: str
    gpus: int


class CostFamilies:
    """These families at one moment, by engine; finite values only.

    Args:
        families: The samples by family.
        unseen: Nodes that are not seen now, of which they are the last ones.
    """

    def __init__(
        self, families: Mapping[str, list[Sample]], unseen: Set[NodeId] = frozenset()
    ) -> None:
        self._families = families
        self._unseen = unseen
        self._of: dict[str, dict[EngineId, list[Sample]]] = {}
        for name, samples in families.items():
            by_engine = self._of[name] = defaultdict(list)
            for labels, value in samples:
                by_engine[engine_id(labels)].append((labels, value))
        self._workers = {
            (*node_id(labels), labels.get("worker", ""))
            for labels, _ in families.get("disagg_worker_state", ())
        }
        self._drained = {
            (*node_id(labels), labels.get("worker", ""))
            for labels, value in families.get("disagg_worker_drained", ())
            if value
        }

    def drained(self, engine: EngineId) -> bool:
        """Whether somebody keeps requests from it, by hand."""
        return engine in self._drained

    def is_seen(self, engine: EngineId) -> bool:
        """Whether its node shows its GPUs now, not only some minutes ago."""
        return engine[:2] not in self._unseen

    def engines(self) -> Iterator[tuple[EngineId, CostKey]]:
        """Every engine that serves a model on known GPUs of one name."""
        gpu_names = {
            (node_id(labels), labels.get("gpu", "")): labels.get("gpu_name", "")
            for labels, _ in self._families["disagg_gpu_info"]
        }
        for engine, ((labels, _), *_more) in self._of["disagg_engine_info"].items():
            assigned = [each for each, _ in self._of["disagg_gpu_assignment_info"].get(engine, ())]
            gpus = {each.get("gpu", "") for each in assigned}
            names = {gpu_names.get((engine[:2], gpu), "") for gpu in gpus}
            role = labels.get("role", "")
            # A follower has no model of its own.
            if (
                labels.get("model_name")
                and role in _SERVING
                and len(names) == 1
                and "" not in names
            ):
                yield (
                    engine,
                    CostKey(
                        model_name=labels.get("model_name", ""),
                        engine_namespace=assigned[0].get("engine_namespace", ""),
                        role=Role(role),
                        gpu_name=names.pop(),
                        gpus=len(gpus),
                    ),
                )

    def steps(self, engine: EngineId) -> LearnedSteps:
        """Step times that this engine exports: its curves, and its cost model beyond their ends.

        With the limits of its steps.
        """
        rates = self._by(engine, "disagg_engine_prefill_curve_tokens_per_second", "step_tokens")
        decode = self._by(engine, "disagg_engine_decode_curve_seconds", "batch")
        points = self._points(engine, "disagg_engine_step_cost_seconds")
        errors = self._points(engine, "disagg_engine_step_cost_error_seconds")
        prefill = {tokens: tokens / rate for tokens, rate in rates.items()}
        return LearnedSteps(
            extended(prefill, {tokens: t for (tokens, n), t in points.items() if not n}),
            extended(decode, {n: t for (tokens, n), t in points.items() if not tokens}),
            _mixed_ratios(points),
            points.get((0.0, 0.0)),
            self._context_tokens(engine),
            _error_ratio(points, errors),
            self._size(engine, "disagg_engine_max_num_batched_tokens"),
            self._size(engine, "disagg_engine_max_num_seqs"),
        )

    def kv_tokens(self, engine: EngineId) -> float | None:
        """Size of its KV cache."""
        return self._size(engine, "disagg_engine_kv_cache_tokens")

    def requests(self, engine: EngineId) -> float | None:
        """How many requests it has, running and waiting."""
        samples = self._of["disagg_engine_requests"].get(engine)
        return None if samples is None else sum(value for _, value in samples)

    def capacity_used(self, engine: EngineId) -> float | None:
        """Share of its capacity in use: 1 if it serves all that it can within its target."""
        samples = self._of["disagg_engine_capacity_used_ratio"].get(engine)
        return samples[0][1] if samples else None

    def supervised(self, engine: EngineId) -> bool:
        """Whether a daemon of ours started it: it is a worker of its node."""
        return engine in self._workers

    def downtime_seconds(self) -> float | None:
        """GPU downtime of a worker's move to another role: the median of the last moves."""
        moves = sorted(value for _, value in self._families["disagg_reassign_downtime_seconds"])
        return moves[len(moves) // 2] if moves else None

    def _size(self, engine: EngineId, name: str) -> float | None:
        samples = self._of[name].get(engine)
        return samples[0][1] if samples and samples[0][1] > 0 else None

    def _by(self, engine: EngineId, name: str, label: str) -> dict[float, float]:
        found = {}
        for labels, value in self._of[name].get(engine, ()):
            size = _number(labels.get(label, ""))
            if size is not None and size > 0 and value > 0:
                found[size] = value
        return found

    def _points(self, engine: EngineId, name: str) -> dict[tuple[float, float], float]:
        """By prompt tokens and decoding requests; points of any other form are left out."""
        found = {}
        for labels, value in self._of[name].get(engine, ()):
            match = _POINT.fullmatch(labels.get("point", ""))
            if match and value >= 0:
                tokens, mixed, alone = (float(each or 0) for each in match.groups())
                found[tokens, mixed + alone] = value
        return found

    def _context_tokens(self, engine: EngineId) -> float | None:
        """Present KV tokens of a running request: tokens in use over running requests.

        None while few run: by chance all of them may have just begun.
        """
        kv_tokens = self.kv_tokens(engine)
        used = self._of["disagg_engine_kv_cache_usage_ratio"].get(engine)
        running = sum(
            value
            for labels, value in self._of["disagg_engine_requests"].get(engine, ())
            if labels.get("state") == "running"
        )
        if kv_tokens is None or not used or running < _LEAST_RUNNING or used[0][1] <= 0:
            return None
        return kv_tokens * used[0][1] / running


def _mixed_ratios(points: Mapping[tuple[float, float], float]) -> dict[tuple[float, float], float]:
    """Times of mixed steps over those of their halves apart, if all of these are exported."""
    found = {}
    for (tokens, requests), seconds in points.items():
        halves = points.get((tokens, 0.0)), points.get((0.0, requests)), points.get((0.0, 0.0))
        if not (tokens and requests) or None in halves:
            continue
        prefill, decode, empty = (half or 0.0 for half in halves)
        apart = prefill + decode - empty
        if apart > 0 and seconds > 0:
            found[tokens, requests] = seconds / apart
    return found


def _error_ratio(
    points: Mapping[tuple[float, float], float], errors: Mapping[tuple[float, float], float]
) -> float | None:
    """Median over the exported steps of their relative standard deviation."""
    ratios = sorted(
        errors[point] / seconds / _DEVIATIONS
        for point, seconds in points.items()
        if point in errors and seconds > 0
    )
    return ratios[len(ratios) // 2] if ratios else None


def engine_id(labels: Mapping[str, str]) -> EngineId:
    """The engine that a sample belongs to."""
    return *node_id(labels), labels.get("engine", "")


def node_id(labels: Mapping[str, str]) -> NodeId:
    """The node that a sample belongs to."""
    return labels.get("cluster", ""), labels.get("node", "") or labels.get("instance", "")


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
