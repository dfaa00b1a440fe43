"""The text of a price table: CSV with a head of `# key: value` lines (docs/simulator.md)."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from disagg_cluster.simulator.prices.grid import Point

FORMAT = "disagg step prices, version 1"
COLUMNS = ("tokens", "kv_tokens", "requests", "request_kv_tokens", "experts")
MICROSECONDS = "microseconds"

# Each part with the columns it is measured over.
PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tokens": ("tokens",),
        "requests": ("requests",),
        "context": ("tokens", "kv_tokens"),
        "decode": ("requests", "request_kv_tokens"),
        "mixed": COLUMNS[:4],
        "experts": ("tokens", "experts"),
    }
)
_HEAD = ("gpu", "model", "gpus", "all_reduce", "source", "licence")
_MOST_GPUS = 1024

PartValues = Mapping[str, Mapping[Point, float]]
"""Microseconds of each part at each of its points."""


def read_text(text: str) -> tuple[dict[str, str], PartValues, list[str]]:
    """Return the head of a table, the values of its parts, and all problems with them."""
    lines = text.splitlines()
    problems: list[str] = []
    head = _head(lines, problems)
    rows = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and line[0] != "#"]
    values = _rows(rows, problems) if head else {}
    return head, values, problems


def render_table(head: Mapping[str, str], values: PartValues) -> str:
    """Return the text of a table, in the format of `read_text`."""
    lines = [f"# {FORMAT}", *(f"# {key}: {head[key]}" for key in _HEAD)]
    lines.append(",".join(("part", *COLUMNS, MICROSECONDS)))
    for part, points in values.items():
        for point, micros in sorted(points.items()):
            at = dict(zip(PARTS[part], point, strict=True))
            cells = (f"{at[column]:g}" if column in at else "" for column in COLUMNS)
            lines.append(f"{part},{','.join(cells)},{micros:.5g}")
    return "\n".join(lines) + "\n"


def _head(lines: Iterable[str], problems: list[str]) -> dict[str, str]:
    comments = [line[1:].strip() for line in lines if line.startswith("#")]
    if not comments or comments[0] != FORMAT:
        problems.append(f"line 1: a price table begins with '# {FORMAT}'")
        return {}
    pairs = (line.partition(":") for line in comments[1:])
    head = {key.strip(): value.strip() for key, _, value in pairs}
    problems += [f"head: no '# {key}: ...'" for key in _HEAD if not head.get(key)]
    gpus = head.get("gpus", "1")
    if not (gpus.isdecimal() and 1 <= int(gpus) <= _MOST_GPUS):
        problems.append(f"head: gpus is {gpus!r}, not a whole number from 1 to {_MOST_GPUS}")
    if head.get("all_reduce", "none") not in ("none", "included", "excluded"):
        problems.append("head: all_reduce is none, included or excluded")
    elif gpus != "1" and head.get("all_reduce") == "none":
        problems.append(f"head: {gpus} GPUs, so all_reduce is included or excluded")
    return head


def _rows(lines: list[tuple[int, str]], problems: list[str]) -> dict[str, dict[Point, float]]:
    """Return the points of each part with their values."""
    values: dict[str, dict[Point, float]] = defaultdict(dict)
    named = next(csv.reader([line for _, line in lines[:1]]), [])
    missing = [name for name in ("part", *COLUMNS, MICROSECONDS) if name not in named]
    if missing:
        problems.append(f"no column {', '.join(missing)}")
        return {}
    for number, line in lines[1:]:
        cells = next(csv.reader([line]))
        if len(cells) != len(named):
            problems.append(f"line {number}: {len(cells)} cells under {len(named)} columns")
            continue
        row = dict(zip(named, cells, strict=True))
        part = row["part"]
        if part not in PARTS:
            problems.append(f"line {number}: part is {part!r}, not one of {', '.join(PARTS)}")
            continue
        numbers = [_number(number, name, row, problems) for name in (*PARTS[part], MICROSECONDS)]
        point = tuple(numbers[:-1])
        if point in values[part]:
            problems.append(f"line {number}: {part} at {point} a second time")
        values[part][point] = numbers[-1]
    return values


def _number(line: int, name: str, row: Mapping[str, str], problems: list[str]) -> float:
    cell = row[name]
    try:
        value = float(cell)
    except ValueError:
        problems.append(f"line {line}: {name} is {cell!r}, not a number")
        return 0.0
    if not (math.isfinite(value) and value >= 0) or (name == MICROSECONDS and value == 0):
        allowed = "above 0" if name == MICROSECONDS else "from 0 up"
        problems.append(f"line {line}: {name} is {cell}, not a number {allowed}")
        return 0.0
    return value
