"""A node file's problems: each with its place, all reported at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from disagg_cluster.config.masking import masked
from disagg_exporter.errors import DisaggError, escaped

YamlPath: TypeAlias = tuple[object, ...]
"""The keys and list positions that lead to a value: `("workers", 1, "gpus")`."""

_MOST_SHOWN = 500
_MOST_REPORTED = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem whose line is yet to be looked up; `hint` says what to do, if known.

    `line` is given if it is not simply the line of `path`.
    """

    path: YamlPath
    message: str
    hint: str = ""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem to fix, with its place as a reader finds it.

    `path` reads like `workers[1].gpus` and is empty for the file as a whole; `line` counts from 1
    and is None if only the path is known.
    """

    path: str
    line: int | None
    message: str
    hint: str = ""

    def text(self, source: str) -> str:
        """Return the problem as one line, `FILE:LINE: path: message`, with its hint below it."""
        place = [source if self.line is None else f"{source}:{self.line}", self.path]
        line = ": ".join(part for part in (*place, self.message) if part)
        return f"{line}\n    {self.hint}" if self.hint else line


class ConfigError(DisaggError):
    """A configuration that cannot be used; its text is the report of its problems.

    Of very many, only the first and the number of the rest are reported: thousands are of no use.

    Args:
        problems: Everything that was found, in the order of the file.
        source: What to call the file in the report.
    """

    exit_code = 2

    def __init__(self, problems: Iterable[Problem], source: str) -> None:
        self.problems = tuple(problems)
        self.source = source
        lines = [problem.text(source) for problem in self.problems[:_MOST_REPORTED]]
        more = len(self.problems) - len(lines)
        super().__init__("\n".join([*lines, f"… and {more} more"] if more else lines))


def config_error(
    findings: Iterable[Finding], source: str, lines: Mapping[YamlPath, int] | None = None
) -> ConfigError:
    """Return the error that reports `findings`, in the file's order and without secrets.

    Args:
        findings: At least one.
        source: What to call the file.
        lines: The line of each path of the file. A path that the file lacks (a missing key) is
            shown at the line of its parent.
    """
    known = lines or {}
    placed = [(finding.line or _line(finding.path, known), finding) for finding in findings]
    placed.sort(key=lambda item: (item[0] or 0, _order(item[1].path), item[1].message))
    problems = [
        Problem(_shown(path_text(finding.path)), line, _shown(finding.message), finding.hint)
        for line, finding in placed
    ]
    return ConfigError(problems, source)


def _shown(text: str) -> str:
    """Return a text of the file's fit for a terminal: no secret, no control, not too long."""
    text = masked(text)
    if len(text) > _MOST_SHOWN:
        text = f"{text[:_MOST_SHOWN]}… ({len(text)} characters)"
    return escaped(text)


def path_text(path: YamlPath) -> str:
    """Return a path as people write it: `workers[1].gpus`, `workers[0].env["MY KEY"]`."""
    text = ""
    for part in path:
        if isinstance(part, int) and not isinstance(part, bool):
            text += f"[{part}]"
        elif isinstance(part, str) and re.fullmatch(r"[\w-]+", part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the word of `known` that `word` most likely stands for, if any is similar."""
    found = difflib.get_close_matches(word.lower().replace("-", "_"), list(known), n=1, cutoff=0.7)
    return found[0] if found else None


def _order(path: YamlPath) -> tuple[tuple[int, str], ...]:
    return tuple((part, "") if isinstance(part, int) else (-1, str(part)) for part in path)


def _line(path: YamlPath, lines: Mapping[YamlPath, int]) -> int | None:
    for length in range(len(path), -1, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None
