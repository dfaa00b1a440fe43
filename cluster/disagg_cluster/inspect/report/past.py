"""What a Prometheus told of a period: rules as sums over buckets, and alerts that fired."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from disagg_cluster.inspect.report.period import Period

SPLIT = "cluster_role_model_gpu:disagg_phase_gpu_seconds:rate5m"
IDLE = "cluster_role_reason:disagg_idle_gpu_seconds:rate5m"
SHOWBACK = "cluster_model_namespace:disagg_gpu_seconds:rate1h"
TOKENS = "cluster_model_namespace:disagg_phase_tokens:rate1h"
ENERGY = "cluster_model_namespace:disagg_energy_watts:rate1h"
ACCOUNTED = "cluster:disagg_accounted_gpu_seconds:rate1h"
UNOBSERVED = "cluster_reason:disagg_unobserved_gpu_seconds:rate1h"
NODE_GPUS = "node:disagg_gpus:sum"
"""Read by itself: how many GPUs each node has, which is no rate."""
COST = "cluster_model_namespace:disagg_cost_per_hour:rate1h"

LABELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        SPLIT: ("role", "phase"),
        IDLE: ("reason",),
        SHOWBACK: ("model_name", "engine_namespace", "phase"),
        TOKENS: ("model_name", "engine_namespace", "phase"),
        ENERGY: ("model_name", "engine_namespace", "phase"),
        COST: ("model_name", "engine_namespace", "phase", "currency"),
        ACCOUNTED: (),
        UNOBSERVED: ("reason",),
    }
)
"""The recorded rules that are read, and what each is added up by."""

Key = tuple[str, ...]
"""The values of a rule's labels, in the order of `LABELS`."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A rule over the period: for each key the integral over each bucket, None where it had none.

    A rate of GPU-seconds integrates to GPU-seconds, watts to joules, a price an hour to price ×
    seconds / hour. `covered` is the share of each bucket for which the rule had a value at all.
    """

    buckets: Mapping[Key, tuple[float | None, ...]]
    covered: tuple[float, ...]

    def total(self, key: Key) -> float:
        """The integral of one key over the whole period."""
        return sum(value for value in self.buckets.get(key, ()) if value is not None)

    def totals(self, *positions: int) -> dict[Key, float]:
        """The integrals over the whole period, added up by some of the labels."""
        found: dict[Key, float] = {}
        for key in self.buckets:
            part = tuple(key[position] for position in positions)
            found[part] = found.get(part, 0.0) + self.total(key)
        return found


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert's labels, and the instants at which it was seen firing."""

    labels: Mapping[str, str]
    instants: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class History:
    """Everything that was asked for; a rule without a value in the period is not there.

    `gpus` are the most GPUs of each node, by cluster and name, in each bucket; None where it was
    not seen.
    """

    period: Period
    curves: Mapping[str, Curve]
    firing: tuple[Firing, ...]
    firing_step_seconds: float
    gpus: Mapping[Key, tuple[float | None, ...]] = field(default_factory=dict)
