"""Energy accounting that processes intervals one by one: a slow and simple reference.

By docs/accounting.md, A10. Only the order in which the parts of an interval are rounded may differ
from the accounting in use.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from disagg_exporter.accounting.devices.energy import CommittedTime, EnergyLedger
from disagg_exporter.accounting.devices.use_trail import uses_within
from disagg_exporter.model import Cell, Reason, Use


class PlainEnergyLedger(EnergyLedger):
    """The same accounting, except for how committed time is split."""

    def commit(self, spent: CommittedTime) -> None:
        """Split the reported energy over committed time."""
        if self._open is None:
            return
        end_ns = int(spent.intervals.edges_ns[-1])
        for interval in [one for one in (*self._waiting, self._open) if one.start_ns < end_ns]:
            uses = uses_within(spent.intervals, [interval.start_ns], [interval.end_ns])
            added: defaultdict[Cell, float] = defaultdict(float)
            for (engine, use), [length_ns] in uses.held.items():
                owner = spent.owners[engine]
                added[Cell(spent.role, use, Reason.NONE, *owner)] += length_ns
                interval.held |= length_ns > 0
            for reason, [length_ns] in uses.unheld.items():
                parts = spent.unheld[reason]
                for cell, part in parts.items():
                    added[cell] += length_ns * part / parts.total()
            for cell, share in added.items():
                if share > 0:
                    interval.shares[cell] = interval.shares.get(cell, 0.0) + share
            if interval.end_ns <= end_ns:
                assert self.microjoules is not None
                self._waiting.popleft()
                watts = interval.watts
                if watts is not None and watts > 0 and not interval.held:
                    known = self.baseline_watts
                    self.baseline_watts = watts if known is None else min(known, watts)
                length_ns = interval.end_ns - interval.start_ns
                self._add(interval.microjoules, length_ns, interval.shares, self.microjoules)

    def _add(
        self, reported: int, length_ns: int, shares: Mapping[Cell, float], cells: Counter[Cell]
    ) -> None:
        idle = {cell: share for cell, share in shares.items() if cell.use is Use.IDLE}
        rest = {cell: share for cell, share in shares.items() if cell.use is not Use.IDLE}
        idle_share = sum(idle.values()) / sum(shares.values())
        for_idle = reported * idle_share
        if rest and self.baseline_watts is not None:
            for_idle = min(for_idle, self.baseline_watts * length_ns * idle_share / 1e3)
        for whole, group in ((round(for_idle), idle), (reported - round(for_idle), rest)):
            given, so_far = 0, 0.0
            for cell, share in group.items():
                so_far += share
                upto = round(whole * so_far / sum(group.values()))
                cells[cell] += upto - given
                given = upto
