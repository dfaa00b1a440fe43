"""A period and what a Prometheus recorded in it: rules as sums over buckets, and alerts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

from disagg_exporter.errors import DisaggError

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_BUCKETS_SECONDS = (60, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_MOST_BUCKETS = 180
_ALL_OF_IT = 0.99


class PeriodError(DisaggError):
    """An invalid span of time, or one that no report can cover."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Period:
    """From `start_seconds` to `end_seconds` (Unix time), in whole buckets.

    Buckets begin and end at multiples of their length, so a bucket of a day is a day in UTC.
    """

    start_seconds: int
    end_seconds: int
    bucket_seconds: int

    @property
    def ends(self) -> range:
        """The end of each bucket."""
        first = self.start_seconds + self.bucket_seconds
        return range(first, self.end_seconds + 1, self.bucket_seconds)

    @property
    def length_seconds(self) -> int:
        """Total length."""
        return self.end_seconds - self.start_seconds


def parse_since(text: str) -> int:
    """Return the seconds of `7d`, `36h`, `90m` or `2w`.

    Raises:
        PeriodError: It is none of these, shorter than ten minutes or longer than two years.
    """
    found = re.fullmatch(r"(\d{1,5})([mhdw])", text)
    if found is None:
        raise PeriodError(f"{text!r} is no span of time: give one such as 7d, 36h or 90m")
    seconds = int(found[1]) * _UNITS[found[2]]
    if not 600 <= seconds <= 2 * 366 * 86400:
        raise PeriodError(f"{text} is too short or too long: ten minutes to two years")
    return seconds


def period_until(now_seconds: float, since_seconds: int) -> Period:
    """Return the period of at least `since_seconds` that ends with the last whole bucket."""
    bucket = next(
        (each for each in _BUCKETS_SECONDS if since_seconds / each <= _MOST_BUCKETS),
        -(-since_seconds // (_MOST_BUCKETS * 86400)) * 86400,
    )
    end = int(now_seconds // bucket) * bucket
    return Period(end - -(-since_seconds // bucket) * bucket, end, bucket)


def utc(seconds: float) -> str:
    """Return a Unix time as people write it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


SPLIT = "cluster_role_model_gpu:disagg_phase_gpu_seconds:rate5m"
IDLE = "cluster_role_reason:disagg_idle_gpu_seconds:rate5m"
SHOWBACK = "cluster_role_model_namespace_gpu:disagg_phase_gpu_seconds:rate5m"
TOKENS = "cluster_model_namespace:disagg_phase_tokens:rate5m"
ENERGY = "cluster_model_namespace:disagg_energy_watts:rate5m"
ACCOUNTED = "cluster:disagg_accounted_gpu_seconds:rate1h"
UNOBSERVED = "cluster_reason:disagg_unobserved_gpu_seconds:rate1h"
NODE_GPUS = "node:disagg_gpus:sum"
NODE_PRICE = "node:disagg_gpu_hour_price:max"
"""Read separately: how many GPUs each node has and what one costs, which are no rates."""
COST = "cluster_model_namespace:disagg_cost_per_hour:rate5m"
HOURLY: Mapping[str, str] = MappingProxyType(
    {
        SHOWBACK: "cluster_model_namespace:disagg_gpu_seconds:rate1h",
        TOKENS: "cluster_model_namespace:disagg_phase_tokens:rate1h",
        ENERGY: "cluster_model_namespace:disagg_energy_watts:rate1h",
        COST: "cluster_model_namespace:disagg_cost_per_hour:rate1h",
    }
)
"""Replacements where a rule was not recorded all the time: older versions recorded hourly means."""

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
"""The recorded rules that are read, and the labels of each for sums."""

Key = tuple[str, ...]
"""The values of a rule's labels, in the order of `LABELS`."""


@dataclass(frozen=True, slots=True)
class RuleSeries:
    """A rule over the period: for each key the integral over each bucket, None without a value.

    A rate of GPU-seconds integrates to GPU-seconds, watts to joules, an hourly price to price ×
    seconds / hour. `covered` is the share of each bucket for which the rule had a value at all.
    """

    buckets: Mapping[Key, tuple[float | None, ...]]
    covered: tuple[float, ...]

    def is_as_long_as(self, other: RuleSeries) -> bool:
        """Return whether it has values for all the time for which the other has some."""
        return sum(self.covered) >= _ALL_OF_IT * sum(other.covered)

    def total(self, key: Key) -> float:
        """Return the integral of one key over the whole period."""
        return sum(value for value in self.buckets.get(key, ()) if value is not None)

    def totals(self, *positions: int) -> dict[Key, float]:
        """Return the integrals over the whole period, summed by some of the labels."""
        found: dict[Key, float] = {}
        for key in self.buckets:
            part = tuple(key[position] for position in positions)
            found[part] = found.get(part, 0.0) + self.total(key)
        return found


NO_SERIES = RuleSeries({}, ())
"""A rule that has no value in the period."""


def added(curves: Iterable[RuleSeries]) -> RuleSeries:
    """Return the sum of a rule over clusters; the best covered one says how far a bucket is."""
    buckets: dict[Key, tuple[float | None, ...]] = {}
    covered: tuple[float, ...] = ()
    for each in curves:
        covered = tuple(map(max, covered or each.covered, each.covered))
        for key, values in each.buckets.items():
            known = buckets.get(key)
            buckets[key] = values if known is None else tuple(map(_sum, known, values))
    return RuleSeries(buckets, covered)


def _sum(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else one + other


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert's labels, and the instants at which it was firing."""

    labels: Mapping[str, str]
    instants: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class History:
    """All query results; a rule without a value in the period is absent.

    `gpus` are the most GPUs of each node, by cluster and name, in each bucket; None where it was
    not observed. `prices` are their prices of a GPU hour, likewise. Curves of the rules in `hourly`
    are hourly means.
    """

    period: Period
    curves: Mapping[str, RuleSeries]
    firing: tuple[Firing, ...]
    firing_step_seconds: float
    gpus: Mapping[Key, tuple[float | None, ...]] = field(default_factory=dict)
    hourly: frozenset[str] = frozenset()
    prices: Mapping[Key, tuple[float | None, ...]] = field(default_factory=dict)

    def curve(self, rule: str) -> RuleSeries:
        """Return a rule, without a key where it had no value."""
        return self.curves.get(rule, NO_SERIES)
