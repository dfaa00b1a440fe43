"""Queries of panels: an expression and its legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Literal

from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from disagg_exporter.metrics.table import FAMILIES

_LABELS = {family.name: family.labels for family in FAMILIES}
DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")


@dataclass(frozen=True, slots=True)
class Ask:
    """One query and its legend."""

    expr: str
    legend: str = ""


def once(metric: str, matchers: str, offset: str = "") -> str:
    """The values of a gauge, each once, whatever pod and address they were scraped from.

    While a daemon or planner is replaced in Kubernetes, there are the series of the old and of the
    new pod: a sum of them would be twice as much.
    """
    labels = dict.fromkeys(("cluster", "node", *_LABELS[metric]))
    return f"max by ({', '.join(labels)}) ({metric}{{{matchers}}}{offset})"


def age(metric: str, matchers: str) -> str:
    """The ages of the times in a gauge when they were scraped, so that seldom scrapes add none."""
    times = f"{metric}{{{matchers}}}"
    return f"(timestamp({times}) - {times})"


def each(names: Iterable[str], expr: str) -> list[Ask]:
    """One query per name, inserted at %s in `expr`: this fixes the order of the series."""
    return [Ask(expr.replace("%s", name), name) for name in names]


def queries(
    asks: Sequence[Ask], kind: Literal["range", "instant", "table"] = "range"
) -> list[Builder[Dataquery]]:
    """The targets A, B, C… of a panel; `table` is an instant query with a column per label."""
    targets: list[Builder[Dataquery]] = []
    for letter, ask in zip(ascii_uppercase, asks, strict=False):
        target = prometheus.Dataquery().expr(ask.expr).ref_id(letter).datasource(DATASOURCE)
        target = target.legend_format(ask.legend or "__auto")
        target = target.range() if kind == "range" else target.instant()
        format_ = PromQueryFormat.TABLE if kind == "table" else PromQueryFormat.TIME_SERIES
        targets.append(target.format(format_))
    return targets
