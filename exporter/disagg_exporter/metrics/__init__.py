"""A snapshot of the node, turned into the metric families of its page."""

from disagg_exporter.metrics.families.family import Data, Family, MetricType
from disagg_exporter.metrics.page_cache import PageText
from disagg_exporter.metrics.render import families_of, is_fresh, render, rows_of
from disagg_exporter.metrics.rows.metric_rows import MetricRows
from disagg_exporter.metrics.table import FAMILIES, LABELS

__all__ = [
    "FAMILIES",
    "LABELS",
    "Data",
    "Family",
    "MetricRows",
    "MetricType",
    "PageText",
    "families_of",
    "is_fresh",
    "render",
    "rows_of",
]
