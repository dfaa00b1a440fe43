"""Metric families, and the page's rows by family before they are rendered as text."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from disagg_exporter.model import Histogram


class MetricType(StrEnum):
    """Prometheus type of a family.

    Only grows, moves freely, carries facts beside a constant 1, or counts observations by upper
    bound.
    """

    COUNTER = "counter"
    GAUGE = "gauge"
    INFO = "info"
    HISTOGRAM = "histogram"


_TYPES = {"total": MetricType.COUNTER, "info": MetricType.INFO}
_UNITS = frozenset(
    {"seconds", "bytes", "ratio", "watts", "hertz", "joules", "celsius", "tokens", "gpus"}
)


class Data(StrEnum):
    """The part of a `Snapshot` that a family is made of, as a title in the metrics reference."""

    DEVICES = "Devices: facts and latest readings"
    ACCOUNTS = "Devices: seconds and joules"
    NODE = "Sums over the node"
    ENGINES = "Engines"
    REQUESTS = "Requests, by model"
    ROUTER = "Router"
    PLANNER = "Planner: the load to come, the GPUs for it, and what holds it back"
    WORKERS = "Workers"
    COLLECTORS = "Collectors"
    HTTP = "Its own pages"
    PROCESS = "Its own process"
    BUILD = "Build"

    @property
    def lasting(self) -> bool:
        """Still shown when the snapshot is stale, so that a failure can be seen at all."""
        return self in (Data.WORKERS, Data.COLLECTORS, Data.HTTP, Data.PROCESS, Data.BUILD)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family; the end of its name follows from its type and unit."""

    name: str
    data: Data
    labels: tuple[str, ...]
    help: str
    is_histogram: bool = False

    @property
    def kind(self) -> MetricType:
        """Its type, from its name."""
        if self.is_histogram:
            return MetricType.HISTOGRAM
        return _TYPES.get(self.name.rpartition("_")[2], MetricType.GAUGE)

    @property
    def unit(self) -> str:
        """The unit in its name, empty where it counts things."""
        unit = self.name.removesuffix("_total").rpartition("_")[2]
        return unit if unit in _UNITS else ""


Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MetricRows:
    """Samples and histograms by family and label values; setting a row twice keeps the last."""

    samples: dict[str, dict[Labels, float]] = field(default_factory=partial(defaultdict, dict))
    histograms: dict[str, dict[Labels, Histogram]] = field(default_factory=dict)

    def set(self, name: str, value: float | None, *labels: str) -> None:
        """Set a row's value; None leaves the row absent."""
        if value is not None:
            self.samples[name][labels] = value

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add to a row that begins at 0; adding 0 creates the row."""
        rows = self.samples[name]
        rows[labels] = rows.get(labels, 0) + value

    def divide(self, name: str, parts: int) -> None:
        """Convert a family that was summed in whole parts of its unit to that unit.

        Done once and last: sums of integers do not depend on their order, and a larger one never
        has a smaller quotient.
        """
        rows = self.samples.get(name, {})
        for labels, value in rows.items():
            if value:  # most rows are 0, which is the same in each unit
                rows[labels] = value / parts

    def set_histogram(self, name: str, histogram: Histogram | None, *labels: str) -> None:
        """Set a histogram; None leaves it absent."""
        if histogram is not None:
            self.histograms.setdefault(name, {})[labels] = histogram
