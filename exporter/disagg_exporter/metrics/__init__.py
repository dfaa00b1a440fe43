"""A snapshot of the node, turned into the metric families of its page."""

from disagg_exporter.metrics.family import Data, Family, Kind
from disagg_exporter.metrics.render import is_fresh, render
from disagg_exporter.metrics.table import FAMILIES, LABELS

__all__ = ["FAMILIES", "LABELS", "Data", "Family", "Kind", "is_fresh", "render"]
