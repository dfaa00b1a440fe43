"""Alerts that fired, as incidents: from when to when, and whose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from disagg_cluster.inspect.report.past import Firing

_NOT_WHOSE = frozenset({"__name__", "alertname", "alertstate", "severity"})
_ORDER = ("page", "ticket", "info")


@dataclass(frozen=True, slots=True)
class Incident:
    """One alert of one culprit, once. Both ends are known to the step of the question."""

    alert: str
    severity: str
    whose: str
    start_seconds: float
    end_seconds: float
    open_start: bool
    open_end: bool

    @property
    def length_seconds(self) -> float:
        """How long it was seen firing."""
        return self.end_seconds - self.start_seconds


def incidents(
    firing: Iterable[Firing], step_seconds: float, start_seconds: float, end_seconds: float
) -> tuple[Incident, ...]:
    """Put instants together: a break of up to two steps belongs to the same incident.

    The most severe come first, then the longest. One that reaches an edge of the period may have
    begun before, or go on.
    """
    found = []
    for each in firing:
        labels = each.labels
        whose = ", ".join(
            f"{name} {value}"
            for name, value in sorted(labels.items())
            if name not in _NOT_WHOSE and value
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
