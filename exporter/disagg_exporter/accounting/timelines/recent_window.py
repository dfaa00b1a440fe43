"""The steps of the last seconds as they arrive, for the fast gauges (accounting A8)."""

from __future__ import annotations

import numpy as np

from disagg_exporter.accounting.intervals.row_queue import Floats, Ints, RowQueue
from disagg_exporter.accounting.intervals.timeline import WorkShares
from disagg_exporter.model import SECOND_NS, Phase

# How far the gauges reach back, unless steps are longer than half of it.
_HORIZON_NS = 2 * SECOND_NS
# Upper bound on kept steps, however long the longest is.
_MOST_KEPT = 2**16

_RECENT = np.dtype(
    [
        ("t_ns", np.int64),
        ("length_ns", np.int64),
        ("prefill_share", np.float64),
        ("dummy_share", np.float64),
    ]
)


class RecentWindow:
    """Steps within the gauges' horizon; `longest_ns` is the longest of them."""

    def __init__(self) -> None:
        self.longest_ns = 0
        self._kept = RowQueue(_RECENT)

    def add(self, t_ns: Ints, length_ns: Ints, prefill_share: Floats, dummy_share: Floats) -> None:
        """Add steps, in any order, and drop what the gauges can no longer reach."""
        new = np.empty(len(t_ns), _RECENT)
        new["t_ns"], new["length_ns"] = t_ns, length_ns
        new["prefill_share"], new["dummy_share"] = prefill_share, dummy_share
        self._kept.add(new)
        kept = self._kept.rows
        # Records may be late: the newest step is not always the last to arrive.
        reach_ns = int(kept["t_ns"].max()) - max(_HORIZON_NS, 2 * int(kept["length_ns"].max()))
        within = kept["t_ns"] >= reach_ns
        first = int(within.argmax())
        if np.count_nonzero(within) == len(kept) - first:
            self._kept.drop(first)
        else:
            self._kept.replace(kept[within])
        self._kept.drop(max(len(self._kept) - _MOST_KEPT, 0))
        self.longest_ns = int(self._kept.rows["length_ns"].max())

    def add_one(self, t_ns: int, length_ns: int, work: WorkShares) -> None:
        """Add one period of work."""
        shares = np.array([work.prefill_share]), np.array([work.dummy_share])
        self.add(np.array([t_ns]), np.array([length_ns]), *shares)

    def __len__(self) -> int:
        return len(self._kept)

    def phases_ns(self, start_ns: int, end_ns: int) -> dict[Phase, int]:
        """Return the time of each phase in [start, end)."""
        kept = self._kept.rows
        t_ns = kept["t_ns"]
        if not (t_ns > start_ns).any():
            return dict.fromkeys(Phase, 0)
        first_ns = np.maximum(t_ns - kept["length_ns"], start_ns)
        inside_ns = np.maximum(np.minimum(t_ns, end_ns) - first_ns, 0)
        useful_ns = inside_ns - np.rint(inside_ns * kept["dummy_share"])
        prefill_ns = int(np.rint(useful_ns * kept["prefill_share"]).sum())
        return {Phase.PREFILL: prefill_ns, Phase.DECODE: int(useful_ns.sum()) - prefill_ns}
