"""An engine's metrics page: its text to the few values we use, and two pages to what happened."""

from disagg_exporter.pages.adapters import page_path, version_path
from disagg_exporter.pages.counting import Tally
from disagg_exporter.pages.heads import Heads
from disagg_exporter.pages.limits import MAX_LINE_BYTES, MAX_WANTED_BYTES
from disagg_exporter.pages.lines import PageError, no_count
from disagg_exporter.pages.parse import parse_page
from disagg_exporter.pages.window import EngineWindow, window

__all__ = [
    "MAX_LINE_BYTES",
    "MAX_WANTED_BYTES",
    "EngineWindow",
    "Heads",
    "PageError",
    "Tally",
    "no_count",
    "page_path",
    "parse_page",
    "version_path",
    "window",
]
