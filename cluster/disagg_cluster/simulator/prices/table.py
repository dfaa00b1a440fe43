"""A price table: measured durations of the parts of a step, and their source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from disagg_cluster.simulator.prices.grid import Grid, Point
from disagg_cluster.simulator.prices.table_text import PARTS, read_text
from disagg_exporter.errors import DisaggError

_NEEDED = ("tokens", "context", "decode")
# Kernels change with the size, and a larger one is sometimes faster; a decrease by more than half,
# and by more than a twentieth of the smallest step, is a wrong unit or column.
_LEAST_OF_SMALLER = 0.5
_LEAST_OF_STEP = 0.05
_MOST_FALLS_TOLD = 8


class PriceTableError(DisaggError):
    """A text that is no price table; lists all problems, each with its line."""


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Measured microseconds of the parts of a step (`PARTS`), each as a grid.

    `gpus` is the size of the group. `all_reduce`: whether communication between GPUs is included in
    the times; if not, it is priced by their link. `surcharge` is what mixed batches take more than
    separate context and decode batches (negative where less); None without mixed rows.
    """

    gpu: str
    model: str
    gpus: int
    all_reduce: bool
    source: str
    licence: str
    parts: Mapping[str, Grid]
    surcharge: Grid | None = None


def parse_table(text: str) -> PriceTable:
    """Parse a price table.

    Raises:
        PriceTableError: The text is not one; lists all problems.
    """
    head, values, problems = read_text(text)
    parts: dict[str, Grid] = {}
    for part, points in values.items():
        try:
            parts[part] = Grid(points)
        except ValueError as error:
            problems.append(f"{part}: {error}")
    if not problems:
        problems += [f"no rows of part {part!r}" for part in _NEEDED if part not in parts]
    if not problems:
        smallest = min(values["tokens"].values())
        for part, grid in parts.items():
            problems += _single_sizes(part, grid)
            problems += _falls(part, values[part], grid, _LEAST_OF_STEP * smallest)
    if problems:
        raise PriceTableError("; ".join(problems))
    return PriceTable(
        gpu=head["gpu"],
        model=head["model"],
        gpus=int(head["gpus"]),
        all_reduce=head["all_reduce"] == "included",
        source=head["source"],
        licence=head["licence"],
        parts=MappingProxyType(parts),
        surcharge=_surcharge(values["mixed"], parts) if "mixed" in parts else None,
    )


def _surcharge(mixed: Mapping[Point, float], parts: Mapping[str, Grid]) -> Grid:
    """Return the surcharge, which is interpolated itself: it is small and nearly linear.

    The parts are neither.
    """
    extra: dict[Point, float] = {}
    for (tokens, kv_tokens, requests, read), micros in mixed.items():
        apart = parts["context"].at(tokens, kv_tokens) + parts["decode"].at(requests, read)
        extra[tokens, kv_tokens, requests, read] = micros - apart
        for nothing in ((0.0, requests), (tokens, 0.0), (0.0, 0.0)):
            extra[nothing[0], kv_tokens, nothing[1], read] = 0.0
    return Grid(extra)


def _single_sizes(part: str, grid: Grid) -> list[str]:
    """Return parts with a single size, from which nothing can be interpolated."""
    return [
        f"{part}: {column} is {axis[0]:g} in all rows, and two sizes are the least"
        for column, axis in zip(PARTS[part], grid.axes, strict=True)
        if len(axis) == 1
    ]


def _falls(part: str, points: Mapping[Point, float], grid: Grid, allowed: float) -> list[str]:
    """Return places where a time collapses as the work grows."""
    problems = []
    for number, axis in enumerate(grid.axes):
        following = dict(pairwise(axis))
        for point, micros in points.items():
            if point[number] not in following:
                continue
            later = (*point[:number], following[point[number]], *point[number + 1 :])
            left = points[later]
            if left < _LEAST_OF_SMALLER * micros and micros - left > allowed:
                problems.append(
                    f"{part}: {left:g} us at {later} are less than half of {micros:g} at {point}"
                )
    return problems[:_MOST_FALLS_TOLD]
