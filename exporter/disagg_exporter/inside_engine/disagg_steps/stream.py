"""The records of one stream, numbered, with the running totals that each of them carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import wire
from .counting import DROPS, ELAPSED, NOTHING_YET, Facts, count


class StepReport(NamedTuple):
    """Input of a record. Without `counted` it has only the engine's state, and no step."""

    facts: Facts
    counted: bool = True
    dummy: bool = False


class Stream:
    """One incarnation of one engine index in one process.

    A record gets the next sequence number, whether it can be sent or not, and is included in the
    totals; `drops` counts those that could not be made or sent. Hello and heartbeat repeat the
    number, the state (running, waiting, deferred, KV) and the totals of the last record, without
    work, so that a listener detects what it missed even when nothing follows. They also contain
    what no record can yet: how many requests the engine has received and not answered.

    Args:
        pid, engine_index, incarnation: Identify the stream.
        flags: The `wire` flags of every record.
        read: Converts what was queued into a report; None if it is not worth a record.
    """

    def __init__(
        self,
        pid: int,
        engine_index: int,
        incarnation: int,
        flags: int,
        read: Callable[..., StepReport | None],
    ) -> None:
        self.drops = 0
        self._head = (pid, engine_index, wire.BYTES, incarnation)
        self._overlapped = bool(flags & wire.OVERLAPPED)
        self._flags = flags | wire.HELD_TOTALS if self._overlapped else flags
        self._read = read
        self._sequence = 0
        self._totals = list(NOTHING_YET)
        self._last = Facts()
        self._held_since_ns = 0

    def record(self, t_ns: int, kept: tuple[Any, ...]) -> bytes | None:
        """Return the next record; None if there is none to make, or if it cannot be made."""
        try:
            read = self._read(*kept)
            if read is None:
                return None
            facts, counted, dummy = read
            totals = self._totals.copy()
            held_ns = self._held_ns(t_ns, facts, counted) if self._overlapped else None
            if counted:
                count(totals, facts, held_ns=held_ns, dummy=dummy)
            elif held_ns:
                totals[ELAPSED + wire.GENERATION] += held_ns
            flags = self._flags | wire.DUMMY if dummy else self._flags
            record = self._packed(wire.STEP, flags, self._sequence + 1, t_ns, facts, totals)
        except Exception:  # noqa: BLE001 # who knows what an engine of another version says
            self.drops += 1
            return None
        if counted or not (_leaves_work(facts) and _leaves_work(self._last)):
            self._held_since_ns = t_ns
        # Only now: an invalid total would make every later record unsendable.
        self._totals, self._last = totals, facts
        self._sequence += 1
        return record

    def standing(
        self,
        kind: int,
        t_ns: int,
        in_flight: int | None = None,
        limits: tuple[int, int] | None = None,
    ) -> bytes:
        """Return a hello or a heartbeat; unknown values are None.

        `in_flight` are unanswered requests, `limits` the most tokens and requests in a step.
        """
        last = self._last
        flags = self._flags if in_flight is None else self._flags | wire.IN_FLIGHT
        most_tokens, most_requests = limits or (0, 0)
        flags |= wire.LIMITS if limits else 0
        state = Facts(
            context_requests=in_flight or 0,
            context_tokens=most_tokens,
            generation_requests=most_requests,
            running=last.running,
            waiting=last.waiting,
            deferred=last.deferred,
            kv_usage_ratio=last.kv_usage_ratio,
        )
        return self._packed(kind, flags, self._sequence, t_ns, state, self._totals)

    def _held_ns(self, t_ns: int, facts: Facts, counted: bool) -> int:
        """Return how long a step of an overlapped engine held its devices.

        It counts from the previous record, if that left work, because `elapsed_ns` is only a wait;
        the first after an idle period uses `elapsed_ns`. A state with work left ends no step.
        """
        if not _leaves_work(self._last):
            return facts.elapsed_ns
        ends = counted or not _leaves_work(facts)
        return max(t_ns - self._held_since_ns, 0) if ends else 0

    def _packed(
        self, kind: int, flags: int, sequence: int, t_ns: int, facts: Facts, totals: list[int]
    ) -> bytes:
        # In the order of `wire.Record`, without creating one: there are hundreds of steps per
        # second.
        totals[DROPS] = self.drops
        head = (wire.VERSION, kind, flags, *self._head, sequence, t_ns)
        return wire.pack(*head, *facts, *totals)


def _leaves_work(facts: Facts) -> bool:
    return bool(facts.running or facts.waiting)
