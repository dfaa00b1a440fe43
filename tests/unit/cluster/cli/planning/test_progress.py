"""What is reported while a command takes long: repeatedly on a terminal, rarely elsewhere."""

from __future__ import annotations

import io
import sys
import threading

import click
import pytest
from click.testing import CliRunner

from disagg_cluster.cli.planning.progress import Progress


class FakeStderr(io.StringIO):
    """Standard error that is no terminal, or is one; knows when something was written."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal
        self.written = threading.Event()

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        count = super().write(text)
        if "\n" in text:
            self.written.set()
        return count


def test_progress_without_a_terminal_is_printed_on_separate_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr = FakeStderr(terminal=False)
    monkeypatch.setattr(sys, "stderr", stderr)
    progress = Progress(every_seconds=0.001)

    progress.say("asking Prometheus")
    assert stderr.written.wait(30)
    progress.end()

    lines = stderr.getvalue().splitlines()
    assert set(lines) == {"asking Prometheus (0s so far)"}
    assert not any(each.name == "progress" for each in threading.enumerate())


def test_progress_of_a_short_command_prints_nothing_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr = FakeStderr(terminal=False)
    monkeypatch.setattr(sys, "stderr", stderr)
    progress = Progress(every_seconds=3600)

    progress.say("asking Prometheus")
    progress.say("planning")
    progress.end()
    progress.end()

    assert stderr.getvalue() == ""


def test_progress_on_a_terminal_rewrites_one_line_and_clears_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr = FakeStderr(terminal=True)
    monkeypatch.setattr(sys, "stderr", stderr)
    progress = Progress()

    progress.say("one")
    progress.say("two")
    progress.end()

    assert stderr.getvalue() == "\rone\x1b[K\rtwo\x1b[K\r\x1b[K"


def test_progress_ends_when_its_command_fails() -> None:
    @click.command
    def fails() -> None:
        Progress(every_seconds=3600).say("asking Prometheus")
        raise click.ClickException("no answer")

    result = CliRunner().invoke(fails)

    assert result.output == "Error: no answer\n"
    assert not any(each.name == "progress" for each in threading.enumerate())
