"""A snapshot of the node, turned into the metric families of its page."""

from disagg_exporter.metrics.families.family import Data, Family, Kind
from disagg_exporter.metrics.render import families_of, is_fresh, render, sheet_of
from disagg_exporter.metrics.rows.sheet import Sheet
from disagg_exporter.metrics.table import FAMILIES, LABELS
from disagg_exporter.metrics.text import PageText

__all__ = [
    "FAMILIES",
    "LABELS",
    "Data",
    "Family",
    "Kind",
    "PageText",
    "Sheet",
    "families_of",
    "is_fresh",
    "render",
    "sheet_of",
]
