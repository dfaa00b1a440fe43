"""Step time that found no room, and the idle time that pays for it (accounting A2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from disagg_exporter.accounting.intervals.phase import Overflow
from disagg_exporter.model import Assignment, EngineState, Reason, Role
from disagg_exporter.model.checkpoints import CarryOverCheckpoint

# Time that owed step time may be paid into, best first: idle, and what no daemon saw.
PAYABLE = (Reason.HOST_GAP, Reason.NO_REQUEST, Reason.KV_WAIT, Reason.NO_DAEMON)


class CarryOver:
    """What one device owes to the engines on it: prefill and decode nanoseconds, by role.

    `cut_ns` counts, for each engine, what will never be paid.
    """

    def __init__(self, limit_ns: int) -> None:
        self.cut_ns: Counter[str] = Counter()
        self._limit_ns = limit_ns
        self._owed: dict[tuple[str, Role], list[int]] = {}

    def owe(self, engine: str, owner: Assignment | None, overflow: Overflow) -> None:
        """Add an engine's overflow, up to the limit; without an owner it is cut."""
        prefill_ns, decode_ns, _ = overflow.work.divide(overflow.length_ns)
        if owner is None:
            self.cut_ns[engine] += prefill_ns + decode_ns
            return
        owed = self._owed.setdefault((engine, owner.role), [0, 0])
        room_ns = max(self._limit_ns - sum(owed), 0)
        self.cut_ns[engine] += max(prefill_ns + decode_ns - room_ns, 0)
        taken_ns = min(prefill_ns, room_ns)
        owed[0] += taken_ns
        owed[1] += min(decode_ns, room_ns - taken_ns)

    def owed_ns(self, engine: str) -> int:
        """Return what is still owed to an engine."""
        return sum(sum(owed) for (name, _), owed in self._owed.items() if name == engine)

    def lost_ns(self, engine: str) -> int:
        """Return what an engine is never paid if the device is no more."""
        return self.cut_ns[engine] + self.owed_ns(engine)

    def close(self, engines: Mapping[str, Assignment]) -> None:
        """Cut what is owed to an engine that left or changed its role: its idle will not come."""
        for engine, role in list(self._owed):
            here = engines.get(engine)
            if here is None or here.role is not role:
                self.cut_ns[engine] += sum(self._owed.pop((engine, role)))

    def forget(self, engine: str) -> None:
        """Drop all that is known of an engine that has gone for good."""
        self.cut_ns.pop(engine, None)
        self._owed = {key: owed for key, owed in self._owed.items() if key[0] != engine}

    def checkpoint(self) -> tuple[CarryOverCheckpoint, ...]:
        """Return what is owed."""
        return tuple(
            CarryOverCheckpoint(*key, *owed) for key, owed in self._owed.items() if any(owed)
        )

    def resume(
        self, debts: Iterable[CarryOverCheckpoint], cut_ns: Iterable[tuple[str, int]]
    ) -> None:
        """Go on with what was owed, and with what had been cut."""
        self._owed = {(d.engine, d.role): [d.prefill_ns, d.decode_ns] for d in debts}
        self.cut_ns.update(dict(cut_ns))

    def pay(
        self, idle: Counter[Reason], engines: Mapping[str, Assignment]
    ) -> Iterator[tuple[str, Reason, int, int]]:
        """Pay out of idle time, which shrinks: (engine, reason, prefill, decode nanoseconds)."""
        for (engine, _), owed in self._owed.items():
            if engines[engine].state is not EngineState.READY:
                continue
            for reason in PAYABLE:
                paid_ns = min(sum(owed), max(idle[reason], 0))
                if paid_ns:
                    prefill_ns = min(owed[0], paid_ns)
                    owed[0] -= prefill_ns
                    owed[1] -= paid_ns - prefill_ns
                    idle[reason] -= paid_ns
                    yield engine, reason, prefill_ns, paid_ns - prefill_ns
