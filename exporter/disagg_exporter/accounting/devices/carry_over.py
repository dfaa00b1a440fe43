"""Step time that found no room, carried over to later idle time (accounting A2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from disagg_exporter.accounting.intervals.timeline import Overflow
from disagg_exporter.model import Assignment, EngineState, Reason, Role
from disagg_exporter.model.checkpoints import CarryOverCheckpoint

# Time that deferred step time may be settled in, best first: idle, then time without a daemon.
SETTLED_IN = (Reason.HOST_GAP, Reason.NO_REQUEST, Reason.KV_WAIT, Reason.NO_DAEMON)


class CarryOver:
    """Deferred prefill and decode nanoseconds of one device, by engine and role.

    `cut_ns`: each engine's step time that will never be settled.
    """

    def __init__(self, limit_ns: int) -> None:
        self.cut_ns: Counter[str] = Counter()
        self._limit_ns = limit_ns
        self._deferred: dict[tuple[str, Role], list[int]] = {}

    def defer(self, engine: str, assignment: Assignment | None, overflow: Overflow) -> None:
        """Add an engine's overflow, up to the limit; cut an unassigned engine's."""
        prefill_ns, decode_ns, _ = overflow.work.divide(overflow.length_ns)
        if assignment is None:
            self.cut_ns[engine] += prefill_ns + decode_ns
            return
        deferred = self._deferred.setdefault((engine, assignment.role), [0, 0])
        room_ns = max(self._limit_ns - sum(deferred), 0)
        self.cut_ns[engine] += max(prefill_ns + decode_ns - room_ns, 0)
        carried_ns = min(prefill_ns, room_ns)
        deferred[0] += carried_ns
        deferred[1] += min(decode_ns, room_ns - carried_ns)

    def deferred_ns(self, engine: str) -> int:
        """Return an engine's step time that is yet to be settled."""
        return sum(sum(deferred) for key, deferred in self._deferred.items() if key[0] == engine)

    def close(self, engines: Mapping[str, Assignment]) -> None:
        """Cut the deferred time of engines that left or changed their role."""
        for engine, role in list(self._deferred):
            assignment = engines.get(engine)
            if assignment is None or assignment.role is not role:
                self.cut_ns[engine] += sum(self._deferred.pop((engine, role)))

    def forget(self, engine: str) -> None:
        """Drop the sums of an engine that is gone for good."""
        self.cut_ns.pop(engine, None)
        self._deferred = {key: ns for key, ns in self._deferred.items() if key[0] != engine}

    def checkpoint(self) -> tuple[CarryOverCheckpoint, ...]:
        """Return the deferred time."""
        return tuple(
            CarryOverCheckpoint(*key, *ns) for key, ns in self._deferred.items() if any(ns)
        )

    def resume(
        self, before: Iterable[CarryOverCheckpoint], cut_ns: Iterable[tuple[str, int]]
    ) -> None:
        """Continue with the deferred and cut time of a checkpoint."""
        self._deferred = {(d.engine, d.role): [d.prefill_ns, d.decode_ns] for d in before}
        self.cut_ns.update(dict(cut_ns))

    def settle(
        self, idle: Counter[Reason], engines: Mapping[str, Assignment]
    ) -> Iterator[tuple[str, Reason, int, int]]:
        """Settle in, and reduce, idle time: yield (engine, reason, prefill ns, decode ns)."""
        for (engine, _), deferred in self._deferred.items():
            if engines[engine].state is not EngineState.READY:
                continue
            for reason in SETTLED_IN:
                settled_ns = min(sum(deferred), max(idle[reason], 0))
                if settled_ns:
                    prefill_ns = min(deferred[0], settled_ns)
                    deferred[0] -= prefill_ns
                    deferred[1] -= settled_ns - prefill_ns
                    idle[reason] -= settled_ns
                    yield engine, reason, prefill_ns, settled_ns - prefill_ns
