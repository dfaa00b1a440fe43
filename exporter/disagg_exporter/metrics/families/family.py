"""What a metric family is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricType(StrEnum):
    """What a family's numbers do.

    Only grow, move freely, carry facts beside a constant 1, or count durations by upper bound.
    """

    COUNTER = "counter"
    GAUGE = "gauge"
    INFO = "info"
    HISTOGRAM = "histogram"


class Data(StrEnum):
    """Which part of a `Snapshot` a family is made of."""

    DEVICES = "devices"
    ACCOUNTS = "accounts"
    NODE = "node sums"
    ENGINES = "engines"
    ROUTER = "router"
    WORKERS = "workers"
    COLLECTORS = "collectors"
    HTTP = "http"
    BUILD = "build"

    @property
    def lasting(self) -> bool:
        """Still shown when the snapshot is stale, so that a failure can be seen at all."""
        return self in (Data.WORKERS, Data.COLLECTORS, Data.HTTP, Data.BUILD)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family; `unit` is the suffix of its name, empty where it counts things."""

    name: str
    kind: MetricType
    data: Data
    labels: tuple[str, ...]
    unit: str
    help: str
