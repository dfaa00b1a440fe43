"""Rows of the page before they are text: for each family, label values and their number."""

from __future__ import annotations

from dataclasses import dataclass, field

from disagg_exporter.model import Histogram

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MetricRows:
    """Rows collected family by family; a row that is written twice exists once."""

    rows: dict[str, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[str, dict[Labels, Histogram]] = field(default_factory=dict)

    def put(self, name: str, value: float | None, *labels: str) -> None:
        """Write a row; a value that is None leaves the row absent."""
        if value is not None:
            self.rows.setdefault(name, {})[labels] = value

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add to a row that begins at 0; adding 0 makes the row exist."""
        rows = self.rows.setdefault(name, {})
        rows[labels] = rows.get(labels, 0) + value

    def divide(self, name: str, parts: int) -> None:
        """Bring a family that was added up in whole parts of its unit to that unit.

        Done once and last: sums of whole numbers do not depend on their order, and the quotient
        of a larger one is no smaller.
        """
        rows = self.rows.get(name, {})
        for labels, value in rows.items():
            if value:  # most rows stand at 0, which is that in each unit
                rows[labels] = value / parts

    def show(self, name: str, histogram: Histogram | None, *labels: str) -> None:
        """Write a histogram; None leaves it absent."""
        if histogram is not None:
            self.histograms.setdefault(name, {})[labels] = histogram
