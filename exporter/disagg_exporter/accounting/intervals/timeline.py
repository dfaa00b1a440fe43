"""An engine's finalized time: gapless pieces, each either work or the reason for none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.accounting.intervals.row_queue import Floats, Ints, RowQueue
from disagg_exporter.model import Reason
from disagg_exporter.model.checkpoints import PieceCheckpoint

PIECE = np.dtype(
    [
        ("start_ns", np.int64),
        ("end_ns", np.int64),
        ("prefill_share", np.float64),
        ("dummy_share", np.float64),
        ("reason", np.int64),
    ]
)
"""A period of time with the shares of its work, or the code of the reason for no work."""

Pieces = NDArray[np.void]
"""Periods of an engine's time, in order: an array of `PIECE`."""

REASONS = tuple(Reason)
CODES = {reason: code for code, reason in enumerate(REASONS)}
"""Codes of the reasons in pieces; `WORK` marks a piece of work."""
WORK = CODES[Reason.NONE]

_SAME = ("reason", "prefill_share", "dummy_share")


@dataclass(frozen=True, slots=True)
class WorkShares:
    """How a span of work divides between the phases (A4).

    `dummy_share` of it held the device without work (data-parallel filler); `prefill_share` of the
    remainder is prefill, the rest decode.
    """

    prefill_share: float
    dummy_share: float = 0.0

    def divide(self, length_ns: int) -> tuple[int, int, int]:
        """Return whole (prefill, decode, dummy) nanoseconds that sum to `length_ns`."""
        # Above 2**53, which hostile engines may claim, rounding a float may exceed the whole.
        dummy_ns = min(round(length_ns * self.dummy_share), length_ns)
        prefill_ns = min(round((length_ns - dummy_ns) * self.prefill_share), length_ns - dummy_ns)
        return prefill_ns, length_ns - dummy_ns - prefill_ns, dummy_ns


class Overflow(NamedTuple):
    """Step time that found no room above the mark, carried over on every device of the engine.

    It lies before `until_ns`, where its span begins.
    """

    work: WorkShares
    length_ns: int
    until_ns: int


class Timeline:
    """A queue of pieces: added at the end, dropped at the beginning."""

    def __init__(self) -> None:
        self._pieces = RowQueue(PIECE)

    @classmethod
    def resumed(cls, pieces: Iterable[PieceCheckpoint]) -> Timeline:
        """Return the timeline of a checkpoint."""
        timeline = cls()
        rows = [(*piece[:4], CODES[piece.reason]) for piece in pieces]
        timeline.extend(np.array(rows, PIECE))
        return timeline

    def checkpoint(self, read_ns: Iterable[int]) -> tuple[PieceCheckpoint, ...]:
        """Return fewer pieces with the same sums: idle time by reason, then the work.

        `read_ns` are the instants up to which the engine's devices have read the timeline. The
        sums between any two of them are kept, so each device still reads the same.
        """
        if not len(self._pieces):
            return ()
        columns = [self.pieces[name].copy() for name in PIECE.names or ()]
        starts_ns, ends_ns = columns[:2]
        first_ns, last_ns = int(starts_ns[0]), int(ends_ns[-1])
        edges = sorted({min(max(edge, first_ns), last_ns) for edge in (*read_ns, last_ns)})
        made: list[PieceCheckpoint] = []
        for start_ns, end_ns in pairwise(edges):
            first = int(ends_ns.searchsorted(start_ns, side="right"))
            last = int(starts_ns.searchsorted(end_ns, side="left"))
            made += _condensed(start_ns, end_ns, *(column[first:last] for column in columns))
        return tuple(made)

    @property
    def pieces(self) -> Pieces:
        """All pieces; valid until some are added."""
        return self._pieces.rows

    def add(self, start_ns: int, end_ns: int, work: WorkShares | None, reason: Reason) -> None:
        """Add one piece: work, or the reason for none."""
        if end_ns <= start_ns:
            return
        shares = (0.0, 0.0) if work is None else (work.prefill_share, work.dummy_share)
        piece = np.array([(start_ns, end_ns, *shares, CODES[reason])], PIECE)
        if self._continues(piece[0]):
            self.pieces["end_ns"][-1] = end_ns
        else:
            self._pieces.add(piece)

    def extend(self, pieces: Pieces) -> None:
        """Add pieces; skip empty ones and merge equal neighbours."""
        pieces = pieces[pieces["end_ns"] > pieces["start_ns"]]
        if not len(pieces):
            return
        new = np.empty(len(pieces), np.bool_)
        new[0] = not self._continues(pieces[0])
        new[1:] = pieces["start_ns"][1:] != pieces["end_ns"][:-1]
        for name in _SAME:
            new[1:] |= pieces[name][1:] != pieces[name][:-1]
        first = np.flatnonzero(new)
        if not new[0]:
            end = first[0] if len(first) else len(pieces)
            self.pieces["end_ns"][-1] = pieces["end_ns"][end - 1]
        merged, last = pieces[first], np.append(first[1:], len(pieces))[: len(first)] - 1
        merged["end_ns"] = pieces["end_ns"][last]
        self._pieces.add(merged)

    def between(self, start_ns: int, end_ns: int) -> Pieces:
        """Return the pieces that overlap [start, end), uncut."""
        first = np.searchsorted(self.pieces["end_ns"], start_ns, side="right")
        last = np.searchsorted(self.pieces["start_ns"], end_ns, side="left")
        return self.pieces[first:last]

    def drop_before(self, t_ns: int) -> None:
        """Drop the pieces that every device has read."""
        self._pieces.drop(int(np.searchsorted(self.pieces["end_ns"], t_ns, side="right")))

    def _continues(self, piece: np.void) -> bool:
        """Return whether a piece merely extends the last one."""
        if not len(self._pieces):
            return False
        last = self.pieces[-1]
        same = all(last[name] == piece[name] for name in _SAME)
        return bool(same and last["end_ns"] == piece["start_ns"])


def mean_shares(
    lengths_ns: Ints | Floats, prefill_shares: Floats, dummy_shares: Floats
) -> tuple[float, float]:
    """Return the (prefill, dummy) shares of the whole that match those of its parts."""
    whole, dummy_ns = float(lengths_ns.sum()), float(np.dot(lengths_ns, dummy_shares))
    useful = whole - dummy_ns
    if dummy_ns:
        lengths_ns = lengths_ns * (1 - dummy_shares)
    prefill = float(np.dot(lengths_ns, prefill_shares))
    return (
        min(prefill / useful, 1.0) if useful > 0 else 0.0,
        min(dummy_ns / whole, 1.0) if whole > 0 else 0.0,
    )


def _condensed(
    start_ns: int,
    end_ns: int,
    starts_ns: Ints,
    ends_ns: Ints,
    prefill_shares: Floats,
    dummy_shares: Floats,
    reasons: Ints,
) -> Iterator[PieceCheckpoint]:
    """Yield one piece per reason, then one for all work, of pieces that fill [start, end)."""
    if len(reasons) == 1:
        shares = float(prefill_shares[0]), float(dummy_shares[0])
        yield PieceCheckpoint(start_ns, end_ns, *shares, REASONS[reasons[0]])
        return
    lengths_ns = np.minimum(ends_ns, end_ns) - np.maximum(starts_ns, start_ns)
    # Exact: a device's uncommitted nanoseconds are fewer than a float can count exactly.
    sums = np.bincount(reasons, lengths_ns, len(REASONS))
    for code in np.flatnonzero(sums).tolist():
        if code != WORK:
            until_ns = start_ns + int(sums[code])
            yield PieceCheckpoint(start_ns, until_ns, 0.0, 0.0, REASONS[code])
            start_ns = until_ns
    if end_ns > start_ns:
        work_ns = np.where(reasons == WORK, lengths_ns, 0)
        shares = mean_shares(work_ns, prefill_shares, dummy_shares)
        yield PieceCheckpoint(start_ns, end_ns, *shares, Reason.NONE)
