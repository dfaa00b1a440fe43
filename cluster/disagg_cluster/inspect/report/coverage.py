"""How much of a period's GPU time is accounted for, unobserved or missing; alerts as incidents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from disagg_cluster.inspect.report.past import (
    ACCOUNTED,
    SPLIT,
    UNOBSERVED,
    Firing,
    History,
    RuleSeries,
)

_HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Coverage:
    """All hours are GPU-hours; `expected` is the length of the period times the GPUs.

    The GPUs are those of all nodes observed in the period, at each node's maximum: a node that came
    or went is expected for the whole time. `unobserved` is by reason, largest first.
    """

    gpus: float
    expected_gpu_hours: float
    accounted_gpu_hours: float
    unobserved: tuple[tuple[str, float], ...]
    nodes: int
    nodes_part_time: int

    @property
    def missing_gpu_hours(self) -> float:
        """GPU-hours of which nothing is known: not counted, or never scraped."""
        known = self.accounted_gpu_hours + sum(hours for _, hours in self.unobserved)
        return max(self.expected_gpu_hours - known, 0.0)

    @property
    def accounted_ratio(self) -> float:
        """Share of the expected GPU-hours that is accounted for by phase."""
        return min(self.accounted_gpu_hours / self.expected_gpu_hours, 1.0)


def coverage_of(history: History) -> Coverage | None:
    """Compare what was counted with the existing GPUs; None if these are not recorded."""
    most = {
        node: max((value for value in values if value is not None), default=0.0)
        for node, values in history.gpus.items()
    }
    gpus = sum(most.values())
    expected = gpus * history.period.length_seconds / _HOUR_SECONDS
    if expected <= 0:
        return None
    hours = _hours(history.curve(UNOBSERVED))
    unobserved = ((key[0], value) for key, value in hours.items() if value > 0)
    return Coverage(
        gpus=gpus,
        expected_gpu_hours=expected,
        accounted_gpu_hours=min(_accounted_hours(history), expected),
        unobserved=tuple(sorted(unobserved, key=lambda one: -one[1])),
        nodes=len(most),
        nodes_part_time=sum(None in values for values in history.gpus.values()),
    )


def _accounted_hours(history: History) -> float:
    """Return the sum by hourly rates, which include late counts, if they cover the whole time."""
    split, hourly = history.curve(SPLIT), history.curve(ACCOUNTED)
    return sum(_hours(hourly if hourly.is_as_long_as(split) else split).values())


def _hours(curve: RuleSeries) -> dict[tuple[str, ...], float]:
    return {key: curve.total(key) / _HOUR_SECONDS for key in curve.buckets}


_NOT_IDENTIFYING = frozenset({"__name__", "alertname", "alertstate", "severity"})
# The words of the rule files, and the chart's defaults.
_ORDER = ("page", "critical", "ticket", "warning", "info")


@dataclass(frozen=True, slots=True)
class Incident:
    """One alert with one set of labels, once. Both ends are accurate to the query's step."""

    alert: str
    severity: str
    whose: str
    start_seconds: float
    end_seconds: float
    open_start: bool
    open_end: bool

    @property
    def length_seconds(self) -> float:
        """How long it was firing."""
        return self.end_seconds - self.start_seconds


def incidents(
    firing: Iterable[Firing], step_seconds: float, start_seconds: float, end_seconds: float
) -> tuple[Incident, ...]:
    """Merge instants: a gap of up to two steps belongs to the same incident.

    The most severe come first, then the longest. One that reaches an edge of the period may have
    begun before, or continue after it.
    """
    found = []
    for each in firing:
        labels = each.labels
        whose = ", ".join(
            f"{name} {value}"
            for name, value in sorted(labels.items())
            if name not in _NOT_IDENTIFYING and value
        )
        for first, last in _runs(each.instants, 3 * step_seconds):
            found.append(
                Incident(
                    labels.get("alertname", "?"),
                    labels.get("severity", ""),
                    whose,
                    first,
                    min(last + step_seconds, end_seconds),
                    first - start_seconds < step_seconds,
                    end_seconds - last < step_seconds,
                )
            )
    return tuple(sorted(found, key=_rank))


def _rank(incident: Incident) -> tuple[int, float, float, str]:
    known = incident.severity in _ORDER
    severity = _ORDER.index(incident.severity) if known else len(_ORDER)
    return severity, -incident.length_seconds, incident.start_seconds, incident.alert


def _runs(instants: tuple[float, ...], most_apart_seconds: float) -> list[tuple[float, float]]:
    runs: list[tuple[float, float]] = []
    for instant in instants:
        if runs and instant - runs[-1][1] < most_apart_seconds:
            runs[-1] = (runs[-1][0], instant)
        else:
            runs.append((instant, instant))
    return runs
