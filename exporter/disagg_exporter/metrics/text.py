"""The page as text, byte for byte what the client library writes for the same rows.

A node has some thousand rows and is asked for them every second: the library takes 25 µs a row,
most of it for labels that are the same on every page. Here they are remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.utils import floatToGoString

from disagg_exporter.metrics.families.family import Family, Kind
from disagg_exporter.metrics.rows.sheet import Labels, Sheet
from disagg_exporter.metrics.table import FAMILIES
from disagg_exporter.model import Histogram

# The library has no types.
_number: Callable[[float], str] = floatToGoString


class PageText:
    """Writes sheets; how a row begins is remembered from one page to the next, and no longer."""

    def __init__(self) -> None:
        self._beginnings: dict[str, dict[Labels, str]] = {}

    def write(self, sheet: Sheet, *, openmetrics: bool) -> bytes:
        """Return the page as OpenMetrics 1.0.0, or else as Prometheus text 0.0.4."""
        parts: list[str] = []
        for family in FAMILIES:
            if rows := sheet.rows.get(family.name):
                parts.append(_head(family, openmetrics))
                self._write_rows(family, rows, parts)
            elif histograms := sheet.histograms.get(family.name):
                parts.append(_head(family, openmetrics))
                for labels, histogram in histograms.items():
                    _write_histogram(family, labels, histogram, parts)
        if openmetrics:
            parts.append("# EOF\n")
        # A lone surrogate (an odd file name) must not fail the whole page.
        return "".join(parts).encode("utf-8", "replace")

    def _write_rows(self, family: Family, rows: dict[Labels, float], parts: list[str]) -> None:
        before, now = self._beginnings.get(family.name, {}), {}
        for labels, value in rows.items():
            beginning = before.get(labels)
            if beginning is None:
                beginning = _beginning(family.name, zip(family.labels, labels, strict=True))
            now[labels] = beginning
            parts.append(f"{beginning}{_number(value)}\n")
        self._beginnings[family.name] = now


def _head(family: Family, openmetrics: bool) -> str:
    name, kind = family.name, str(family.kind)
    if openmetrics:
        name = name.removesuffix("_total").removesuffix("_info")
    elif family.kind is Kind.INFO:
        kind = "gauge"
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        text = text.replace('"', r"\"")
    unit = f"# UNIT {name} {family.unit}\n" if openmetrics and family.unit else ""
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{unit}"


def _beginning(name: str, labels: Iterable[tuple[str, str]]) -> str:
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels))
    return f"{name}{{{pairs}}} " if pairs else f"{name} "


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _write_histogram(
    family: Family, labels: Labels, histogram: Histogram, parts: list[str]
) -> None:
    own = list(zip(family.labels, labels, strict=True))
    bounds = (*map(_number, histogram.bounds_seconds), "+Inf")
    for bound, count in zip(bounds, histogram.counts, strict=True):
        beginning = _beginning(f"{family.name}_bucket", [*own, ("le", bound)])
        parts.append(f"{beginning}{_number(count)}\n")
    sums = (("count", histogram.counts[-1]), ("sum", histogram.sum_seconds))
    for suffix, value in sums:
        beginning = _beginning(f"{family.name}_{suffix}", own)
        parts.append(f"{beginning}{_number(value)}\n")
