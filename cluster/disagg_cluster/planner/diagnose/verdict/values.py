"""What a diagnosis says: findings with cause, cost, evidence and one action, or why none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.model import Role

# How likely an alternative is, as a part of its finding's cost.
_OF_ALTERNATIVE = 0.15


class Cause(StrEnum):
    """What holds requests back before their first token; the values are label values."""

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


class RemedyKind(StrEnum):
    """What can be done; one action a finding."""

    ROUTE_AWAY = "route_away"
    SET_BATCHED_TOKENS = "set_max_num_batched_tokens"
    SET_SEQS = "set_max_num_seqs"
    MOVE_WORKER = "move_worker"
    REPLACE_GPU = "replace_gpu"
    MERGE_POOLS = "merge_pools"
    NONE = "none"


class TtftPart(StrEnum):
    """A part of users' time to first token, in the order in which a request meets them."""

    ROUTER = "router"
    QUEUE = "queue"
    PREFILL = "prefill"
    KV_TRANSFER = "kv_transfer"
    FIRST_DECODE = "first_decode"


class DiagnosisOutcome(StrEnum):
    """What a diagnosis of one model came to."""

    FOUND = "found"
    NO_BOTTLENECK = "no_bottleneck"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, order=True)
class ModelKey:
    """A model as it is served: what engines compete for, and what is diagnosed at once."""

    cluster: str
    engine_namespace: str
    model_name: str


@dataclass(frozen=True, slots=True, order=True)
class EngineKey:
    """An engine in a cluster: its name is unique on its node only."""

    node: str
    engine: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation behind a finding, in words with numbers and units.

    `expected` is what it was held against: the engine's own past, its peers or a target.
    """

    name: str
    value: float
    expected: float | None
    unit: str
    text: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do, for whom, and what it would bring. `value` is that of a `set_…` action."""

    kind: RemedyKind
    text: str
    value: int | None = None
    ttft_gain_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another cause that the evidence of a finding speaks for, too; `text` says how, or why."""

    cause: Cause
    text: str


@dataclass(frozen=True, slots=True)
class BottleneckFinding:
    """One cause that holds requests back.

    Without `engines` it is the pool of the `role` as a whole. `ttft_cost_seconds` is added to the
    mean time to first token of all requests of the model in the window; `engine_cost_seconds` to
    that of the requests that went through these engines. `confidence` is from 0 to 1,
    `since_seconds` the Unix time at which it began, as far as the window shows. `alternative` is
    what else it may be: of the two it is the one or the other.
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
    """Where the time to first token of an engine's requests went, in mean seconds a request.

    A part that nobody tells is missing. `expected` is by the engine's own curve, load and lengths.
    """

    engine: EngineKey | None
    role: Role
    observed_seconds: tuple[tuple[TtftPart, float], ...]
    expected_seconds: tuple[tuple[TtftPart, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelDiagnosis:
    """What is known of one model at one moment; `findings` cost most first.

    `suspects` are what may hold requests back, too, and is not beyond chance yet, likeliest first:
    nothing is to be done about them but to look again. `missing` names evidence that nobody
    exports, in words, whatever the outcome.
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
        """Causes found by what they cost, each once, then those that are suspected.

        An alternative costs the part of its finding's cost that it may be.
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
