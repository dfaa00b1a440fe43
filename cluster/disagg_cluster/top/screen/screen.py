"""The whole screen: exactly as large as the terminal, or as long as needed."""

from __future__ import annotations

from disagg_cluster.top.screen import sections
from disagg_cluster.top.screen.controls import Controls, ScreenPage, selected_engine
from disagg_cluster.top.screen.lines import Glyphs, Line, fitted
from disagg_cluster.top.screen.main_page import main_page
from disagg_cluster.top.screen.other_pages import (
    LogTail,
    engine_page,
    help_page,
    log_page,
    workers_page,
)
from disagg_cluster.top.view.values import TerminalView

LEAST_WIDTH = 40


def screen(
    view: TerminalView,
    controls: Controls,
    width: int,
    height: int | None,
    glyphs: Glyphs,
    log: LogTail | None = None,
) -> list[Line]:
    """The lines of a terminal.

    Args:
        view: The view to show.
        controls: The state set by keys.
        width: Cells per line.
        height: Lines of the terminal, all of them filled; None for as many as needed.
        glyphs: The characters for drawing.
        log: The last lines of the selected engine's log, if shown.
    """
    width = max(width, LEAST_WIDTH)
    tail = log or LogTail(why_not="its log is on its own node")
    match controls.page:
        case ScreenPage.MAIN:
            lines = main_page(view, controls, width, height, glyphs)
            return [fitted(line, width, glyphs) for line in lines]
        case ScreenPage.HELP:
            lines = help_page(view, width)
        case ScreenPage.WORKERS:
            lines = workers_page(view, width, glyphs)
        case ScreenPage.ENGINE:
            lines = engine_page(view, selected_engine(view, controls), tail, width, glyphs)
        case ScreenPage.LOG:
            lines = log_page(selected_engine(view, controls), tail, height)
    if height is not None:
        body: list[Line] = [*lines, *[()] * height][: height - 1]
        lines = [*body, sections.foot(controls, width, glyphs)]
    return [fitted(line, width, glyphs) for line in lines]
