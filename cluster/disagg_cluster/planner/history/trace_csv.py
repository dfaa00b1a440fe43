"""Load from a CSV file: `t_s, requests_per_s, prompt_tokens_per_s, output_tokens_per_s`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from disagg_cluster.planner.history.history_file import (
    HistoryFileError,
    Problems,
    check_times,
    unreadable,
)
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSpanError, load_series

_TIME = "t_s"
_PROMPT, _OUTPUT, _REQUESTS = "prompt_tokens_per_s", "output_tokens_per_s", "requests_per_s"
_NEEDED = (_TIME, _PROMPT, _OUTPUT)
_MOST_SHOWN = 80
_MOST = 1e15
"""Upper limit of rates, so that their sums and squares stay finite."""


def read_trace(path: Path) -> LoadHistory:
    """Read a file with one row per step; further columns are ignored, empty cells are gaps.

    A column of requests without any number is as none. Rows may be in any order. The step is the
    median distance between times.

    Raises:
        HistoryFileError: All problems of the file at once.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return read_rows(file, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error


def read_rows(lines: Iterable[str], name: str) -> LoadHistory:
    """Read the lines of such a file; `name` stands for it in errors."""
    try:
        return _read_rows(csv.DictReader(lines, restkey=""), name)
    except csv.Error as error:
        raise HistoryFileError(f"{name}: not valid CSV: {error}") from error


def _read_rows(reader: csv.DictReader[str], name: str) -> LoadHistory:
    problems = Problems(name)
    there = reader.fieldnames or []
    missing = [column for column in _NEEDED if column not in there]
    if missing:
        found = f", found {', '.join(there)[:_MOST_SHOWN]!r}" if there else ""
        problems.add(1, f"no column {', '.join(missing)}; expected {', '.join(_NEEDED)}{found}")
    columns = [*_NEEDED, *([_REQUESTS] if _REQUESTS in there else [])]
    for column in columns:
        if there.count(column) > 1:
            problems.add(1, f"{there.count(column)} columns {column}, expected one")
    problems.raise_any()
    rows = np.array(list(_numbers(reader, columns, problems)), dtype=np.float64)
    problems.raise_any()
    if not len(rows):
        wanted = ", ".join(_NEEDED)
        raise HistoryFileError(f"{name}: no rows; expected {wanted} below a line that names them")
    counted = rows[:, len(_NEEDED) :]
    if np.isfinite(counted).any() and not np.nansum(counted) and np.nansum(rows[:, 1:3]):
        why = f"{_REQUESTS} is 0 in every row although there are tokens"
        raise HistoryFileError(f"{name}: {why}; omit the column if requests are not counted")
    times = rows[:, 0]
    step_seconds = _step(times, name)
    try:
        series = [load_series(times, rows[:, i], step_seconds) for i in range(1, len(columns))]
    except LoadSpanError as error:
        raise HistoryFileError(f"{name}: {error}") from None
    check_times(float(times.min()), float(times.max()), name, f"{_TIME} is seconds")
    prompts, outputs, *requests = series
    counts = next((each for each in requests if each.known), None)
    return LoadHistory(LoadKey(), prompts, outputs, counts)


def _numbers(
    reader: csv.DictReader[str], columns: list[str], problems: Problems
) -> Iterator[list[float]]:
    for row in reader:
        numbers = []
        for column in columns:
            text = (row[column] or "").strip()
            try:
                value = float(text) if text else float("nan")
            except ValueError:
                problems.add(reader.line_num, f"{column} is {text!r}, expected a number")
                continue
            if column == _TIME and not np.isfinite(value):
                problems.add(reader.line_num, f"{column} is {text!r}, expected seconds")
            elif column != _TIME and (value < 0 or _MOST < value < float("inf")):
                expected = "0 or more" if value < 0 else f"{_MOST:g} or less"
                problems.add(reader.line_num, f"{column} is {text}, expected {expected}")
            numbers.append(value)
        if len(numbers) == len(columns):
            yield numbers


def _step(times: np.typing.NDArray[np.float64], name: str) -> float:
    apart = np.diff(np.unique(times))
    if not len(apart):
        raise HistoryFileError(f"{name}: one time only; a load over time needs two")
    return float(np.percentile(apart, 50, method="lower"))
