"""The text of an engine's page to the few values we use."""

from __future__ import annotations

from disagg_exporter.engine_pages.engines.adapters import ADAPTERS
from disagg_exporter.engine_pages.exposition.lines import PageError, Wanted, look
from disagg_exporter.engine_pages.exposition.series_keys import Heads
from disagg_exporter.engine_pages.reading import Reading
from disagg_exporter.model import EnginePage

_WANTED = Wanted(name for adapter in ADAPTERS for name in adapter.names)


def parse_page(text: bytes, t_ns: int, heads: Heads | None = None) -> EnginePage:
    """Read an engine's page, whichever kind of engine it is.

    Ranks and engine indexes are summed (KV use and forward seconds averaged: ranks have equal
    caches and work side by side). A gauge that is not a number from 0 up is absent.

    Args:
        text: The page.
        t_ns: When it was asked for.
        heads: What is remembered of this engine's earlier pages; it makes the look cheap.

    Raises:
        PageError: The page is no page of a known engine, is cut off, holds garbage among the
            lines we need, a sample twice, or a counter that is not a number from 0 up.
    """
    if text.lstrip()[:1] == b"<":
        raise PageError("this is an HTML page, not a metrics page")
    if not text.endswith(b"\n"):
        raise PageError("the page is cut off: its last line has no end")
    heads = Heads() if heads is None else heads
    layout, numbers = look(text, _WANTED, heads, "engine's")
    return heads.work_out(layout, Reading).page(numbers, t_ns)
