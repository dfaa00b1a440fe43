"""Keys from bytes, colours for terminals, the view once."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Sequence

import pytest

from disagg_cluster.top.readings.parsing import reading_of
from disagg_cluster.top.readings.values import LiveReading
from disagg_cluster.top.screen.lines import ASCII, UNICODE, Glyphs, Span
from disagg_cluster.top.terminal.keys import keys_of
from disagg_cluster.top.terminal.live import ReadingThread
from disagg_cluster.top.terminal.once import as_json, read_once
from disagg_cluster.top.terminal.painter import Painter, console_for, glyphs_for
from disagg_cluster.top.view.values import Links
from support import top_looks as looks

LINE = (Span("busy", "prefill"), Span(" "), Span("chosen", "selected dim"))


class Terminal(io.StringIO):
    """A terminal that keeps what it is sent."""

    def isatty(self) -> bool:
        return True


def painter(**environ: str) -> Painter:
    return Painter(console_for(Terminal(), {"TERM": "xterm-256color", **environ}))


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[A\x1bOB", ["up", "down"]),
        (b"\x1b[5~\x1b[6~x", ["pageup", "pagedown", "x"]),
        (b"\x1b[1;5Cj", ["j"]),
        (b"\r\x7f\x03", ["enter", "backspace", "interrupt"]),
        ("é".encode(), ["é"]),
        (b"\xff", []),
    ],
)
def test_input_bytes_are_decoded_to_keys(data: bytes, keys: list[str]) -> None:
    assert list(keys_of(data)) == keys


def test_colours_match_the_capability_of_the_terminal() -> None:
    # A style of Rich keeps what it was first rendered as: each is asked of one terminal only.
    assert "38;2;" in painter(COLORTERM="truecolor").text((Span("busy", "prefill"),))
    assert "38;5;" in painter().text((Span("busy", "decode"),))


def test_no_color_leaves_only_the_selection_reversed() -> None:
    assert painter(NO_COLOR="1").text(LINE) == "busy \x1b[7mchosen\x1b[0m"


def test_a_file_is_sent_plain_text() -> None:
    assert Painter(console_for(io.StringIO(), {})).text(LINE) == "busy chosen"


def test_only_lines_that_changed_are_painted_again() -> None:
    paints = painter(NO_COLOR="1")
    paints.frame([(Span("one"),), (Span("two"),)])

    assert paints.frame([(Span("one"),), (Span("2"),)]) == "\x1b[2;1H2\x1b[0m\x1b[K"
    assert paints.frame([(Span("one"),), (Span("2"),)]) == ""


@pytest.mark.parametrize(
    ("encoding", "environ", "glyphs"),
    [
        ("utf-8", {"LANG": "en_US.UTF-8"}, UNICODE),
        ("utf-8", {"LC_ALL": "C"}, ASCII),
        ("utf-8", {"LC_ALL": "C.UTF-8", "LANG": "C"}, UNICODE),
        ("ascii", {"LANG": "en_US.UTF-8"}, ASCII),
        ("utf-8", {"LANG": "de_DE.ISO-8859-1"}, ASCII),
    ],
)
def test_glyphs_are_ascii_unless_locale_and_encoding_are_utf8(
    encoding: str, environ: dict[str, str], glyphs: Glyphs
) -> None:
    assert glyphs_for(encoding, environ) is glyphs


class ScriptedSource:
    """Looks as they are handed in; the last one stays."""

    title, links = "node", Links()

    def __init__(self, *whole: LiveReading) -> None:
        self._looks = list(whole)
        self.reads = 0

    def past(self) -> Sequence[LiveReading]:
        return ()

    def earlier(self) -> LiveReading | None:
        return None

    def read(self) -> LiveReading:
        self.reads += 1
        return self._looks[min(self.reads, len(self._looks)) - 1]


class UnreadableOnce(ScriptedSource):
    """A source whose first look raises what nobody thought of."""

    def read(self) -> LiveReading:
        look = super().read()
        if self.reads == 1:
            raise ValueError("cannot convert float NaN to integer")
        return look


def test_an_unreadable_page_is_reported_and_polling_continues() -> None:
    bell, ours = socket.socketpair()
    with bell, ours:
        reader = ReadingThread(UnreadableOnce(whole_look(0)), 0.001, ours)
        reader.start()
        first, second = (reader.updates.get(timeout=10) for _ in range(2))
        reader.ended.set()
        reader.join(10)

    assert (first.reading, "NaN" in first.unanswered) == (None, True)
    assert second.reading is not None


def whole_look(ago: float) -> LiveReading:
    return reading_of(looks.serving(2, 2, looks.AT - ago), looks.AT - ago)


def test_once_waits_until_accounts_have_advanced() -> None:
    source = ScriptedSource(whole_look(10), whole_look(10), whole_look(5))

    view = read_once(source, sleep=lambda _: None)

    assert source.reads == 3
    assert view.time is not None
    assert view.time.window_seconds == pytest.approx(5)


def test_once_gives_up_waiting_for_accounts_that_stand_still() -> None:
    slept: list[float] = []

    view = read_once(ScriptedSource(whole_look(10)), sleep=slept.append)

    assert sum(slept) == 6.5
    assert view.engines


def test_json_holds_all_values_and_null_for_the_unknown() -> None:
    view = read_once(ScriptedSource(whole_look(10), whole_look(5)), sleep=lambda _: None)

    told = json.loads(as_json(view))

    assert told["models"][0]["verdicts"] == ["prefill is short of GPUs"]
    assert told["engines"][0]["between_tokens_p95_seconds"] is None
    assert told["gpus"][0]["time"]["seconds"].keys() == {
        *("prefill", "decode", "idle", "unattributed", "unobserved")
    }
