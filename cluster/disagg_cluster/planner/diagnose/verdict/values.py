"""A diagnosis: findings with cause, cost, evidence and one action, or the reason for none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.model import Role

# An alternative is ranked at this part of its finding's cost.
_OF_ALTERNATIVE = 0.15


class Cause(StrEnum):
    """A cause of late first tokens; the values are label values."""

    DEMAND = "demand_above_capacity"
    ROUTING = "unbalanced_routing"
    SLOW_GPU = "slow_gpu"
    TP_STRAGGLER = "tp_straggler"
    LONG_PROMPTS = "long_prompts"
    CACHE_COLLAPSE = "cache_hit_collapse"
    UNDERFILLED = "batch_underfilled"
    OVERFILLED = "batch_overfilled"
    GIANTS = "head_of_line"
    KV_TRANSFER = "kv_transfer"
    DECODE_BACK_PRESSURE = "decode_back_pressure"
    PREALLOCATION = "decode_preallocation"
    LATENCY_FLOOR = "latency_floor"
    KV_FULL = "kv_cache_full"
    HOST_BOUND = "host_bound"
    INTERFERENCE = "mixing_interference"
    STRANGER = "stranger_on_gpu"
    COLD_START = "cold_start"
    ROUTER_LIMIT = "router_limit"


BEFORE_ENGINES = frozenset({Cause.LATENCY_FLOOR, Cause.ROUTER_LIMIT})
"""Causes of waits that no engine has: the role of their findings is that of the next pool."""


class RemedyKind(StrEnum):
    """The kind of action; a finding has one."""

    ROUTE_AWAY = "route_away"
    SET_BATCHED_TOKENS = "set_max_num_batched_tokens"
    SET_SEQS = "set_max_num_seqs"
    MOVE_WORKER = "move_worker"
    REPLACE_GPU = "replace_gpu"
    MERGE_POOLS = "merge_pools"
    NONE = "none"


class TtftPart(StrEnum):
    """A part of users' time to first token, in the order of a request."""

    ROUTER = "router"
    QUEUE = "queue"
    PREFILL = "prefill"
    KV_TRANSFER = "kv_transfer"
    FIRST_DECODE = "first_decode"


class DiagnosisOutcome(StrEnum):
    """The outcome of the diagnosis of one model."""

    FOUND = "found"
    NO_BOTTLENECK = "no_bottleneck"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, order=True)
class ModelKey:
    """A served model, the unit of diagnosis: its engines compete for the same requests."""

    cluster: str
    engine_namespace: str
    model_name: str


@dataclass(frozen=True, slots=True, order=True)
class EngineKey:
    """An engine in a cluster; its name is unique only on its node."""

    node: str
    engine: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation behind a finding, as text with numbers and units.

    `expected` is its baseline: the engine's own past, its peers or a target.
    """

    name: str
    value: float
    expected: float | None
    unit: str
    text: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do, for which engines, and the gain. `value` is that of a `set_…` action."""

    kind: RemedyKind
    text: str
    value: int | None = None
    ttft_gain_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another cause that the evidence of a finding also supports; `text` says why."""

    cause: Cause
    text: str


@dataclass(frozen=True, slots=True)
class BottleneckFinding:
    """One cause of late first tokens.

    Without `engines` it affects the pool of the `role` as a whole. `ttft_cost_seconds` is added to
    the mean time to first token of all requests of the model in the window; `engine_cost_seconds`
    to that of the requests that went through these engines. `confidence` is from 0 to 1,
    `since_seconds` the Unix time of its onset, as far as the window shows. `alternative` is
    another possible cause: it is one of the two.
    """

    cause: Cause
    role: Role
    engines: tuple[EngineKey, ...]
    confidence: float
    ttft_cost_seconds: float
    engine_cost_seconds: float
    since_seconds: float
    evidence: tuple[Evidence, ...]
    remedy: Remedy
    text: str
    alternative: Alternative | None = None


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The time to first token of an engine's requests by part, in mean seconds a request.

    A part that is not exported is missing. `expected` follows from the engine's baseline.
    """

    engine: EngineKey | None
    role: Role
    observed_seconds: tuple[tuple[TtftPart, float], ...]
    expected_seconds: tuple[tuple[TtftPart, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelDiagnosis:
    """The diagnosis of one model at one time; `findings` are ordered by cost, largest first.

    `suspects` are further possible causes that are not significant yet, likeliest first: they call
    for no action but another round. `missing` names the evidence that is missing because nothing
    exports it; it is set for every outcome.
    """

    model: ModelKey
    now_seconds: float
    outcome: DiagnosisOutcome
    findings: tuple[BottleneckFinding, ...] = ()
    parts: tuple[EngineParts, ...] = ()
    missing: tuple[str, ...] = ()
    text: str = ""
    suspects: tuple[BottleneckFinding, ...] = ()

    @property
    def ranked_causes(self) -> tuple[Cause, ...]:
        """Causes of findings by cost, each once, then those of suspects.

        An alternative counts with a fixed part of its finding's cost.
        """
        costs: dict[Cause, float] = {}
        for finding in self.findings:
            cost_seconds = finding.ttft_cost_seconds
            costs[finding.cause] = max(costs.get(finding.cause, 0.0), cost_seconds)
            if finding.alternative is not None:
                other, part_seconds = finding.alternative.cause, _OF_ALTERNATIVE * cost_seconds
                costs[other] = max(costs.get(other, 0.0), part_seconds)
        found = sorted(costs, key=lambda cause: -costs[cause])
        return tuple(dict.fromkeys((*found, *(each.cause for each in self.suspects))))
