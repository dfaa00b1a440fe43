"""Many pieces and records as few, for a checkpoint: the same sums, in less text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.accounting.intervals.timeline import REASONS, WORK, Pieces
from disagg_exporter.accounting.timelines.entry import Marks, Spans
from disagg_exporter.model import Reason
from disagg_exporter.model.checkpoints import PendingWork, PieceCheckpoint
from disagg_exporter.steps.rows import LARGEST


def condensed_pieces(pieces: Pieces, edges_ns: Iterable[int]) -> tuple[PieceCheckpoint, ...]:
    """Return pieces with the same sums between each two edges: rests by reason, then the work.

    The pieces follow each other without a gap. `edges_ns` are the instants up to which the
    engine's devices have read them, so that each device still finds the same sums.
    """
    if not len(pieces):
        return ()
    # Columns of their own: they are gone through several times.
    columns = _Columns._make(pieces[name].copy() for name in _Columns._fields)
    first_ns, last_ns = int(columns.start_ns[0]), int(columns.end_ns[-1])
    edges = sorted({min(max(edge, first_ns), last_ns) for edge in (*edges_ns, last_ns)})
    made: list[PieceCheckpoint] = []
    for start_ns, end_ns in pairwise(edges):
        first = int(columns.end_ns.searchsorted(start_ns, side="right"))
        last = int(columns.start_ns.searchsorted(end_ns, side="left"))
        made += _between(columns.part(first, last), start_ns, end_ns)
    return tuple(made)


class _Columns(NamedTuple):
    """The columns of pieces, in the order of `PieceCheckpoint`."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    prefill_share: NDArray[np.float64]
    dummy_share: NDArray[np.float64]
    reason: NDArray[np.int64]

    def part(self, first: int, last: int) -> _Columns:
        """Return some of the pieces."""
        return _Columns._make(column[first:last] for column in self)


def _between(pieces: _Columns, start_ns: int, end_ns: int) -> Sequence[PieceCheckpoint]:
    reasons = pieces.reason
    if len(reasons) == 1:
        shares = float(pieces.prefill_share[0]), float(pieces.dummy_share[0])
        return [PieceCheckpoint(start_ns, end_ns, *shares, REASONS[reasons[0]])]
    starts, ends = pieces.start_ns.copy(), pieces.end_ns.copy()
    starts[0], ends[-1] = start_ns, end_ns
    lengths = ends - starts
    # Exact: a device's uncommitted time has fewer nanoseconds than a float has bits for.
    sums = np.bincount(reasons, lengths, len(REASONS))
    made: list[PieceCheckpoint] = []
    for code in np.flatnonzero(sums).tolist():
        if code != WORK:
            until_ns = start_ns + int(sums[code])
            made.append(PieceCheckpoint(start_ns, until_ns, 0.0, 0.0, REASONS[code]))
            start_ns = until_ns
    if end_ns > start_ns:
        work = np.where(reasons == WORK, lengths, 0)
        shares = _mean_shares(work, pieces.prefill_share, pieces.dummy_share)
        made.append(PieceCheckpoint(start_ns, end_ns, *shares, Reason.NONE))
    return made


def condensed_work(spans: Spans) -> PendingWork:
    """Return the records that are not frozen as one."""
    marks = spans.marks
    # What hostile engines claim to have been lost may have a sum of more than 63 bits.
    lengths = spans.lengths_ns.astype(np.float64)
    return PendingWork(
        min(int(lengths.sum()), LARGEST),
        *_mean_shares(lengths, marks["prefill_share"], marks["dummy_share"]),
        int(marks["prefill_tokens"].sum()),
        int(marks["decode_tokens"].sum()),
        lost_records(marks),
    )


def lost_records(marks: Marks) -> int:
    """Return how many records were lost, those left out that no daemon could have received."""
    lost = marks["lost"]
    return int(lost[~marks["unheard"]].sum()) if lost.any() else 0


def _mean_shares(
    lengths_ns: NDArray[np.int64] | NDArray[np.float64],
    prefill_shares: NDArray[np.float64],
    dummy_shares: NDArray[np.float64],
) -> tuple[float, float]:
    """Return the shares by which the whole divides as its parts do."""
    whole, dummy_ns = float(lengths_ns.sum()), float(np.dot(lengths_ns, dummy_shares))
    useful = whole - dummy_ns
    if dummy_ns:
        lengths_ns = lengths_ns * (1 - dummy_shares)
    prefill = float(np.dot(lengths_ns, prefill_shares))
    return (
        min(prefill / useful, 1.0) if useful > 0 else 0.0,
        min(dummy_ns / whole, 1.0) if whole > 0 else 0.0,
    )
