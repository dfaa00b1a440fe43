"""Load from a request log: JSON lines in the format of the Mooncake traces."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from disagg_cluster.host.foreign_json import parse_foreign
from disagg_cluster.planner.history.history_file import (
    HistoryFileError,
    Problems,
    check_times,
    unreadable,
)
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import (
    Floats,
    LoadSeries,
    LoadSpanError,
    checked_span,
)

# Larger values are no times or lengths, and large integers do not fit floats.
_MOST = 1e18
_MOST_SHOWN = 40
# From 2001 to 2096 as Unix seconds. As milliseconds from the begin of a trace, after 11 days.
_SECONDS = (1e9, 4e9)
_HOUR_MS = 3.6e6
# Of random arrivals, fewer than one gap in a hundred is longer than so many mean ones.
_USUAL_GAPS = 5.0
_FIELDS = ("timestamp", "input_length", "output_length")


def read_request_log(path: Path, step_seconds: float = 60.0) -> LoadHistory:
    """Read a log, one JSON object per line: `timestamp` in ms, `input_length`, `output_length`.

    All tokens of a request count in the step of its arrival. A log holds every request, so a step
    without any has no load; it is not a gap. The first and the last step are left out where the log
    begins or ends within them. Prompts count in full, because prefix cache hits are unknown
    (`hash_ids` are ignored).

    Raises:
        HistoryFileError: All problems of the file at once.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            return read_log_lines(file, str(path), step_seconds)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error


def read_log_lines(lines: Iterable[str], name: str, step_seconds: float) -> LoadHistory:
    """Read the lines of such a log; `name` stands for it in errors."""
    problems = Problems(name)
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            row = _request(line, number, problems)
            if row is not None:
                rows.append(row)
    problems.raise_any()
    if not rows:
        wanted = ", ".join(f'"{field}": …' for field in _FIELDS)
        raise HistoryFileError(f"{name}: no requests; expected a line {{{wanted}}} for each")
    requests = np.array(rows, dtype=np.float64)
    _check_unit(requests[:, 0], name)
    times = requests[:, 0] / 1000.0
    steps = np.floor(times / step_seconds)
    first = float(steps.min())
    steps -= first
    try:
        length = checked_span(float(steps.max()) + 1.0, step_seconds)
    except LoadSpanError as error:
        raise HistoryFileError(f"{name}: {error} Timestamps are milliseconds.") from None
    check_times(float(times.min()), float(times.max()), name, "timestamps are milliseconds")
    at = steps.astype(np.int64)
    whole = _whole_steps(times / step_seconds - first, length)

    def per_second(amounts: np.typing.NDArray[np.float64] | None) -> LoadSeries:
        sums = np.bincount(at, weights=amounts, minlength=length)[whole]
        return LoadSeries((first + whole.start) * step_seconds, step_seconds, sums / step_seconds)

    return LoadHistory(
        LoadKey(), per_second(requests[:, 1]), per_second(requests[:, 2]), per_second(None)
    )


def _check_unit(timestamps: Floats, name: str) -> None:
    """Reject what is surely in seconds since 1970: read as milliseconds, a log within an hour."""
    first, last = float(timestamps.min()), float(timestamps.max())
    if _SECONDS[0] <= first and last < _SECONDS[1] and last - first < _HOUR_MS:
        raise HistoryFileError(
            f"{name}: timestamps from {first:.0f} to {last:.0f} are seconds since 1970; expected "
            "milliseconds"
        )


def _whole_steps(at_steps: Floats, steps: int) -> slice:
    """The steps that the log covers, by its requests' times in steps.

    It is taken to cover a step to its edge unless far more time is left than between requests.
    """
    begins, ends = float(at_steps.min()), float(at_steps.max())
    usual = _USUAL_GAPS * (ends - begins) / max(1, len(at_steps) - 1)
    start, stop = int(begins > usual), steps - int(steps - ends > usual)
    return slice(start, stop) if start < stop else slice(0, steps)


def _request(line: str, number: int, problems: Problems) -> tuple[float, float, float] | None:
    try:
        row = parse_foreign(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        problems.add(number, f"expected a JSON object, found {line[:40].strip()!r}")
        return None
    bad = [field for field in _FIELDS if not _is_amount(row.get(field))]
    if bad:
        values = ", ".join(f"{field} is {_shown(row.get(field))}" for field in bad)
        problems.add(number, f"{values}; expected numbers, 0 or more")
        return None
    when, prompt, output = (float(row[field]) for field in _FIELDS)
    return when, prompt, output


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with thousands of digits
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _is_amount(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= _MOST and math.isfinite(value)
