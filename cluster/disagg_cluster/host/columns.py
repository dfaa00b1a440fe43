"""Formats rows of text as a table for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return rows as aligned columns; those numbered `right` are right-aligned.

    If a row has fewer cells than the first, its last cell may have any length.
    """
    count = len(rows[0])
    widths = [0] * count
    for row in rows:
        for place, cell in enumerate(row if len(row) == count else row[:-1]):
            widths[place] = max(widths[place], len(cell))
    return "\n".join(_line(row, widths, right) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> str:
    cells = [
        cell.rjust(width) if place in right else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=False))
    ]
    if len(row) < len(widths):
        cells[-1] = row[-1]
    return "  ".join(cells).rstrip()
