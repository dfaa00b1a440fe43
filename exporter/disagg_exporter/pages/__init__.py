"""An engine's metrics page: its text to the few values we use, and two pages to what happened."""

from disagg_exporter.pages.adapters import page_path
from disagg_exporter.pages.counting import count_on
from disagg_exporter.pages.lines import MAX_LINE_BYTES, MAX_WANTED_BYTES, Heads, PageError
from disagg_exporter.pages.parse import parse_page
from disagg_exporter.pages.window import EngineWindow, window

__all__ = [
    "MAX_LINE_BYTES",
    "MAX_WANTED_BYTES",
    "EngineWindow",
    "Heads",
    "PageError",
    "count_on",
    "page_path",
    "parse_page",
    "window",
]
