"""An engine's time that no longer changes: a gapless sequence of pieces, read by its devices."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.accounting.intervals.phase import WorkShares
from disagg_exporter.accounting.intervals.row_queue import RowQueue
from disagg_exporter.model import Reason
from disagg_exporter.model.checkpoints import PieceCheckpoint

Pieces = NDArray[np.void]
"""Stretches of an engine's time: an array of `PIECE`, in order."""

PIECE = np.dtype(
    [
        ("start_ns", np.int64),
        ("end_ns", np.int64),
        ("prefill_share", np.float64),
        ("dummy_share", np.float64),
        ("reason", np.int64),
    ]
)
"""A stretch of time: the shares of its work, or its reason for there being none."""

_SAME = ("reason", "prefill_share", "dummy_share")

REASONS = tuple(Reason)
CODES = {reason: code for code, reason in enumerate(REASONS)}
"""Reasons as they stand in a piece; `WORK` is that of a piece of work."""
WORK = CODES[Reason.NONE]


class Timeline:
    """Pieces are added at its end and forgotten at its beginning."""

    def __init__(self) -> None:
        self._pieces = RowQueue(PIECE)

    @classmethod
    def resumed(cls, pieces: Iterable[PieceCheckpoint]) -> Timeline:
        """Return the pieces of a checkpoint."""
        timeline = cls()
        rows = [(*piece[:4], CODES[piece.reason]) for piece in pieces]
        timeline.extend(np.array(rows, PIECE))
        return timeline

    @property
    def pieces(self) -> Pieces:
        """All pieces; good until some are added."""
        return self._pieces.rows

    def add(self, start_ns: int, end_ns: int, work: WorkShares | None, reason: Reason) -> None:
        """Add one piece: work, or none for a reason."""
        if end_ns <= start_ns:
            return
        shares = (0.0, 0.0) if work is None else (work.prefill_share, work.dummy_share)
        piece = np.array([(start_ns, end_ns, *shares, CODES[reason])], PIECE)
        if self._goes_on(piece[0]):
            self.pieces["end_ns"][-1] = end_ns
        else:
            self._pieces.add(piece)

    def extend(self, pieces: Pieces) -> None:
        """Add pieces, the empty ones left out and equal neighbours made one."""
        pieces = pieces[pieces["end_ns"] > pieces["start_ns"]]
        if not len(pieces):
            return
        new = np.empty(len(pieces), np.bool_)
        new[0] = not self._goes_on(pieces[0])
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
        """Return the pieces that overlap the stretch, uncut."""
        first = np.searchsorted(self.pieces["end_ns"], start_ns, side="right")
        last = np.searchsorted(self.pieces["start_ns"], end_ns, side="left")
        return self.pieces[first:last]

    def forget_before(self, t_ns: int) -> None:
        """Drop the pieces that every device has read."""
        self._pieces.drop(int(np.searchsorted(self.pieces["end_ns"], t_ns, side="right")))

    def _goes_on(self, piece: np.void) -> bool:
        """Whether a piece only goes on with the last one."""
        if not len(self._pieces):
            return False
        last = self.pieces[-1]
        same = all(last[name] == piece[name] for name in _SAME)
        return bool(same and last["end_ns"] == piece["start_ns"])
