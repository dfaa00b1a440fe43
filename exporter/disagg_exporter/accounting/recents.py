"""The last steps of an engine as they arrived: what the fast gauges look back on."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from disagg_exporter.accounting.rules import SECOND_NS
from disagg_exporter.model import Phase

# How far the gauges may look back, unless steps are longer than half of it.
_HORIZON_NS = 2 * SECOND_NS


class Recents:
    """Steps within the gauges' horizon; `longest_ns` is the longest of them."""

    def __init__(self) -> None:
        self.longest_ns = 0
        self._t_ns = np.empty(0, np.int64)
        self._length_ns = np.empty(0, np.int64)
        self._prefill_share = np.empty(0)
        self._dummy_share = np.empty(0)

    def add(
        self,
        t_ns: ArrayLike,
        length_ns: ArrayLike,
        prefill_share: ArrayLike,
        dummy_share: ArrayLike,
    ) -> None:
        """Take the newest steps and forget what the gauges can no longer reach."""
        t_all, length_all = np.append(self._t_ns, t_ns), np.append(self._length_ns, length_ns)
        reach_ns = t_all[-1] - max(_HORIZON_NS, 2 * int(length_all.max()))
        first = int(np.argmax(t_all >= reach_ns))
        self._t_ns, self._length_ns = t_all[first:], length_all[first:]
        self._prefill_share = np.append(self._prefill_share, prefill_share)[first:]
        self._dummy_share = np.append(self._dummy_share, dummy_share)[first:]
        self.longest_ns = int(self._length_ns.max())

    def __len__(self) -> int:
        return len(self._t_ns)

    def seconds_ns(self, start_ns: int, end_ns: int) -> dict[Phase, int]:
        """Return the time of each phase within a stretch."""
        if not (self._t_ns > start_ns).any():
            return dict.fromkeys(Phase, 0)
        first_ns = np.maximum(self._t_ns - self._length_ns, start_ns)
        inside_ns = np.maximum(np.minimum(self._t_ns, end_ns) - first_ns, 0)
        useful_ns = inside_ns - np.rint(inside_ns * self._dummy_share)
        prefill_ns = int(np.rint(useful_ns * self._prefill_share).sum())
        return {Phase.PREFILL: prefill_ns, Phase.DECODE: int(useful_ns.sum()) - prefill_ns}
