"""Record docs/pictures/top.svg: the live view of the demo, as a terminal shows it.

Run by `make top-picture`; it takes two minutes, so that the last minute is one of load.
"""

from __future__ import annotations

import os
import re
import sys
import time
from itertools import groupby
from pathlib import Path

import pyte
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.style import Style
from rich.text import Text

from support.terminal_program import TerminalProgram

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "top.svg"
COLUMNS, LINES = 110, 29
LOADED_SECONDS = 110.0
COMMAND = (sys.executable, "-m", "disagg_cluster.cli", "demo")
ENVIRON = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
MOST_BYTES = 300_000
# The site loads nothing from other hosts: the reader's own font is used.
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def style_of(cell: pyte.screens.Char) -> Style:
    """Return the style of a cell of the terminal."""
    return Style(
        color=colour_of(cell.fg),
        bgcolor=colour_of(cell.bg),
        bold=cell.bold,
        reverse=cell.reverse,
    )


def colour_of(name: str) -> str | None:
    """Return Rich's name of a colour."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return {"brown": "yellow"}.get(name, name.replace("bright", "bright_"))


def drawn(screen: pyte.Screen) -> str:
    """Return the screen as an SVG."""
    console = Console(width=screen.columns, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115 - printed for the record only
    for line in range(screen.lines):
        text = Text()
        cells = (screen.buffer[line][column] for column in range(screen.columns))
        for style, alike in groupby(cells, key=style_of):
            text.append("".join(cell.data for cell in alike), style)
        console.print(text, no_wrap=True, overflow="crop")
    return console.export_svg(title="disagg-node demo", code_format=_FORMAT)


def main() -> None:
    """Run the demo on a terminal, and save its screen."""
    with TerminalProgram(COMMAND, COLUMNS, LINES, {**os.environ, **ENVIRON}) as demo:
        demo.shown(lambda text: "BUSY" in text, "the view", 120)
        until = time.monotonic() + LOADED_SECONDS
        demo.shown(
            lambda text: time.monotonic() > until and "USED" in text, "a minute of load", 300
        )
        picture = drawn(demo.screen)
        demo.type("q")
        demo.wait()
    if len(picture) > MOST_BYTES:
        raise SystemExit(f"{len(picture)} bytes are more than {MOST_BYTES}")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
