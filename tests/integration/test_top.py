"""`disagg-node demo` on a terminal: the live view of the real daemon, its keys, and its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import termios

from support.terminal_program import TerminalProgram

DISAGG_NODE = (sys.executable, "-m", "disagg_cluster.cli")
DEMO = (*DISAGG_NODE, "demo", "--no-prometheus", "--listen", "127.0.0.1:0")
ENVIRON = {
    **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "LC_ALL")},
    "TERM": "xterm-256color",
    "LANG": "C.UTF-8",
}
_ROW = re.compile(r"GPU |all |[0-9] |ENGINE|prefill-|decode-|q ")
ALTERNATE_SCREEN, BACK = b"\x1b[?1049h", b"\x1b[?1049l"


def skeleton(text: str) -> list[str]:
    """The heads of a screen's rows, without the figures that change from run to run."""
    rows = (line for line in text.splitlines() if _ROW.match(line))
    return [" ".join(re.sub(r"[0-9.]+", "N", row).split()[:2]) for row in rows]


ROWS = [
    "GPU ROLE",
    "all N",
    *["N prefill"] * 4,
    *["N decode"] * 4,
    "ENGINE ROLE",
    *["decode-N decode"] * 2,
    *["prefill-N prefill"] * 4,
    "q quit",
]


def all_ready(text: str) -> bool:
    return text.count(" ready ") >= 6


def printing_once(url: str) -> subprocess.Popen[str]:
    """The same in a pipe, without colours and in ASCII."""
    return subprocess.Popen(
        [*DISAGG_NODE, "top", "--url", url],
        stdout=subprocess.PIPE,
        text=True,
        env={**ENVIRON, "LC_ALL": "C", "COLUMNS": "80"},
    )


def test_the_demo_shows_a_live_view_and_restores_the_terminal_at_ctrl_c() -> None:
    with TerminalProgram(DEMO, 80, 24, ENVIRON) as demo:
        text = demo.shown(all_ready, "six engines that are ready")
        while_shown = demo.modes
        assert skeleton(text) == ROWS
        page = re.search(r"page (http\S+)/", text)
        assert page is not None
        piped = printing_once(page[1])

        demo.type("?")
        demo.shown(lambda shown: "select an engine" in shown, "the help")
        demo.type("q/decode\r")
        filtered = demo.shown(lambda shown: "only 'decode'" in shown, "the filter")
        assert "decode-1" in filtered
        assert "prefill-0 prefill" not in filtered
        demo.type("\r")
        demo.shown(lambda shown: "capacity used" in shown, "the engine by itself")
        demo.type("q")
        demo.resize(200, 50)
        demo.shown(lambda shown: "MEASURED BY" in shown, "the columns of a wide terminal")

        told, _ = piped.communicate()
        assert piped.returncode == 0
        demo.type("\x03")
        code = demo.wait()
        after = demo.modes

    assert code == 0
    assert BACK in demo.sent.partition(ALTERNATE_SCREEN)[2]
    assert while_shown[3] & (termios.ECHO | termios.ICANON) == 0
    assert after[3] & (termios.ECHO | termios.ICANON) == termios.ECHO | termios.ICANON
    assert b"draining" in demo.sent.rpartition(BACK)[2]
    # Workers have lines of their own where there is room.
    workers = [*["prefill-N ready"] * 4, *["decode-N ready"] * 2]
    assert skeleton(told) == [*ROWS[:-1], *workers]
    assert told.isascii()
    assert "\x1b" not in told
