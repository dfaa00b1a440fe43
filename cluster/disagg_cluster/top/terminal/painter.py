"""Writes lines to a terminal, in its colours, and only what has changed."""

from __future__ import annotations

import locale
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import IO

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from disagg_cluster.top.screen.lines import ASCII, UNICODE, Glyphs, Line, plain

# The colours of the dashboards (grafana/builders/panels/palette.py).
STYLES = {
    "prefill": "#5794f2",
    "decode": "#ff9830",
    "idle": "#8e8e8e",
    "unattributed": "#fade2a",
    "unobserved": "#b877d9",
    "broken": "bold #f2495c",
    "warning": "#ff9830",
    "notice": "#5794f2",
    "good": "#73bf69",
    "dim": "bright_black",
    "bold": "bold",
    "title": "bold",
    "key": "bold",
    "selected": "reverse",
}
_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
}
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
CLEAR = "\x1b[2J\x1b[H"


def glyphs_for(encoding: str, environ: Mapping[str, str]) -> Glyphs:
    """The characters to draw with, from the output encoding and the locale."""
    chosen = next(filter(None, map(environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    name = chosen.partition(".")[2] or locale.getpreferredencoding(do_setlocale=False)
    spoken = {each.lower().replace("-", "") for each in (encoding, name)}
    wide = chosen not in ("C", "POSIX") and spoken <= {"utf8"}
    return UNICODE if wide else ASCII


@lru_cache(maxsize=256)
def rich_style(name: str) -> Style:
    """The style of a span by name; several names are combined."""
    return Style.combine([Style.parse(STYLES[each]) for each in name.split() if each in STYLES])


class Painter:
    """Produces the output for a terminal.

    Args:
        console: Knows the terminal's colours, including NO_COLOR and FORCE_COLOR.
    """

    def __init__(self, console: Console) -> None:
        no_color = console.no_color
        self._system = None if no_color else _SYSTEMS.get(console.color_system or "")
        self._bare = no_color and console.color_system is not None
        self._shown: list[str] = []

    def text(self, line: Line) -> str:
        """A line with its escape codes."""
        if self._system is None and not self._bare:
            return plain(line)
        return "".join(self._span(span.text, span.style) for span in line)

    def frame(self, lines: Sequence[Line]) -> str:
        """The output that turns the previous frame into this one."""
        texts = [self.text(line) for line in lines]
        changed = [
            f"\x1b[{number};1H{text}\x1b[0m\x1b[K"
            for number, text in enumerate(texts, 1)
            if number > len(self._shown) or self._shown[number - 1] != text
        ]
        self._shown = texts
        return "".join(changed)

    def forget(self) -> None:
        """Forget the previous frame, as the screen is blank; the next one is sent in full."""
        self._shown = []

    def _span(self, text: str, style: str) -> str:
        if not style:
            return text
        known = rich_style(style)
        if self._system is None:
            # Without colours, the selection must still be visible.
            return f"\x1b[7m{text}\x1b[0m" if known.reverse else text
        return known.render(text, color_system=self._system)


def console_for(file: IO[str], environ: Mapping[str, str]) -> Console:
    """A console for the terminal behind a file."""
    return Console(file=file, highlight=False, markup=False, emoji=False, _environ=dict(environ))


def entering() -> str:
    """Escape codes at the start of the view: alternate screen, no cursor, no wrapping."""
    return _ENTER + CLEAR


def leaving() -> str:
    """Escape codes that restore the previous screen."""
    return _LEAVE
