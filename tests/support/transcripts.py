r"""Whole outputs of commands, compared with files in tests/data/outputs.

A file is a transcript: each command after a `$`, its output, its standard error after a `!`, its
exit code if it is not 0. If a command's coloured output differs, it is repeated with FORCE_COLOR=1,
with escape codes as `\e[…m`. `WRITE_OUTPUTS=1 pytest …` rewrites the files.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner

from disagg_cluster.cli.main import main

FOLDER = Path(__file__).parents[1] / "data" / "outputs"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d)?")
_COLUMNS = "80"


class Transcript:
    """Runs commands and records their output.

    Args:
        hidden: Texts that differ from run to run, and their replacements.
    """

    def __init__(self, hidden: Mapping[str, str] | None = None) -> None:
        self._hidden = dict(hidden or {})
        self._lines: list[str] = []

    def hide(self, text: object, name: str) -> None:
        """Write `name` in place of a text from now on."""
        self._hidden[str(text)] = name

    def run(self, *arguments: object, again: bool = True) -> None:
        """Run one command, plain and, if that differs, `again` in colour."""
        said = [str(each) for each in arguments]
        plain = self._output(said, {"NO_COLOR": "1"})
        self._lines += [f"$ {self._shown(said)}", *plain]
        if not again:
            return
        coloured = self._output(said, {"NO_COLOR": "", "FORCE_COLOR": "1"})
        if coloured != plain:
            self._lines += [f"$ FORCE_COLOR=1 {self._shown(said)}", *coloured]

    def check(self, name: str) -> None:
        """Compare the transcript with the file of that name."""
        path = FOLDER / f"{name}.txt"
        text = "\n".join(self._lines) + "\n"
        if os.environ.get("WRITE_OUTPUTS"):
            path.write_text(text, encoding="utf-8")
        assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()

    def _output(self, arguments: list[str], environ: Mapping[str, str]) -> list[str]:
        runner = CliRunner(env={"COLUMNS": _COLUMNS, "TERM": "xterm", **environ})
        result = runner.invoke(main, arguments, prog_name="disagg-node")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        lines = self._masked(result.stdout).splitlines()
        lines += [f"! {line}".rstrip() for line in self._masked(result.stderr).splitlines()]
        return lines + ([f"(exit code {result.exit_code})"] if result.exit_code else [])

    def _shown(self, arguments: list[str]) -> str:
        return "disagg-node " + self._masked(shlex.join(arguments))

    def _masked(self, text: str) -> str:
        for hidden, name in self._hidden.items():
            text = text.replace(hidden, name)
        return _TIME.sub("TIME", text).replace("\x1b", "\\e")
