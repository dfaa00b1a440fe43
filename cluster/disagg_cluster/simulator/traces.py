"""Loads that were recorded: traces in the form of CSV text.

Columns `t_s, requests_per_s, prompt_tokens_per_s, output_tokens_per_s` (more are left alone), one
row a step, the steps equally long. Each row is what arrived in the step that begins at `t_s`.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from disagg_cluster.simulator.load import Mix
from disagg_exporter.errors import DisaggError

_COLUMNS = ("t_s", "requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s")
_NOTHING = Mix(0.0, 0.0, 0.0)


class TraceError(DisaggError):
    """A text that is no trace; says which line is wrong and why."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded load; it begins anew when it is over."""

    step_seconds: float
    mixes: tuple[Mix, ...]

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.step_seconds * len(self.mixes)

    @property
    def mean_requests_per_second(self) -> float:
        """Over its whole length."""
        return sum(mix.requests_per_second for mix in self.mixes) / len(self.mixes)

    def rate(self, t_seconds: float) -> Mix:
        """The mix `t_seconds` after the start."""
        return self.mixes[int(t_seconds / self.step_seconds) % len(self.mixes)]

    def scaled(self, mean_requests_per_second: float) -> Trace:
        """The same trace with this mean; the lengths of requests stay."""
        factor = mean_requests_per_second / self.mean_requests_per_second
        mixes = (
            replace(mix, requests_per_second=mix.requests_per_second * factor) for mix in self.mixes
        )
        return replace(self, mixes=tuple(mixes))


def parse_trace(text: str) -> Trace:
    """Read a trace.

    Raises:
        TraceError: The text is something else.
    """
    rows = list(csv.DictReader(text.splitlines()))
    if len(rows) < 2:
        raise TraceError("a trace needs two rows or more")
    parsed = [_numbers(line, row) for line, row in enumerate(rows, start=2)]
    starts = [numbers[0] for numbers in parsed]
    step_seconds = starts[1] - starts[0]
    for line, (start, following) in enumerate(pairwise(starts), start=3):
        if step_seconds <= 0 or abs(following - start - step_seconds) > 1e-6:
            raise TraceError(f"line {line}: the steps of t_s are not equally long")
    return Trace(step_seconds, tuple(_mix(*numbers[1:]) for numbers in parsed))


def read_trace(path: Path) -> Trace:
    """Read a trace from a file; raises `TraceError`, and `OSError` if there is no such file."""
    try:
        return parse_trace(path.read_text(encoding="utf-8"))
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _numbers(line: int, row: Mapping[str, str | None]) -> tuple[float, float, float, float]:
    values = []
    for column in _COLUMNS:
        try:
            value = float(row.get(column) or "")
        except ValueError:
            raise TraceError(f"line {line}: {column} is {row.get(column)!r}, no number") from None
        if not 0 <= value < 1e15:
            raise TraceError(f"line {line}: {column} is {value}, not a number from 0 up")
        values.append(value)
    return values[0], values[1], values[2], values[3]


def _mix(requests: float, prompt_tokens: float, output_tokens: float) -> Mix:
    if requests == 0:
        return _NOTHING
    return Mix(requests, prompt_tokens / requests, output_tokens / requests)
