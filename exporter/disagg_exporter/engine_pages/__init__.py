"""An engine's metrics page: its text to the few values we use, and two pages to what happened."""

from disagg_exporter.engine_pages.adapters import page_path, version_path
from disagg_exporter.engine_pages.exposition.layout_cache import MAX_LINE_BYTES, MAX_WANTED_BYTES
from disagg_exporter.engine_pages.exposition.lines import PageError, no_count
from disagg_exporter.engine_pages.exposition.series_keys import SeriesKeys
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.engine_pages.window import CumulativeCounts, EngineWindow, window

__all__ = [
    "MAX_LINE_BYTES",
    "MAX_WANTED_BYTES",
    "CumulativeCounts",
    "EngineWindow",
    "PageError",
    "SeriesKeys",
    "no_count",
    "page_path",
    "parse_page",
    "version_path",
    "window",
]
