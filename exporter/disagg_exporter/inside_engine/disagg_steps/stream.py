"""The records of one stream, numbered, with the running totals that each of them carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import wire
from .counting import DROPS, ELAPSED, NOTHING_YET, Facts, count
from .held import Held, leaves_work, next_held


class StepReport(NamedTuple):
    """Input of a record. Without `counted` it has only the engine's state, and no step.

    `prompt_ns`: from scheduling to first token, of a request whose first token the step made.
    """

    facts: Facts
    counted: bool = True
    dummy: bool = False
    prompt_ns: int = 0


class Stream:
    """One incarnation of one engine index in one process.

    A record gets the next sequence number, whether it can be sent or not, and is included in the
    totals; `drops` counts those that could not be made or sent. Hello and heartbeat repeat the
    number, the state (running, waiting, deferred, KV) and the totals of the last record, without
    work, so that a listener detects what it missed even when nothing follows. They also contain
    what no record can yet: how many requests the engine has received and not answered.

    Args:
        pid, engine_index, incarnation: Identify the stream, which began at `incarnation`
            (CLOCK_MONOTONIC, ns).
        flags: The `wire` flags of every record.
        read: Converts what was queued into a report; None if it is not worth a record.
        late: Each step is launched before the record of the one before it is made. Only then are
            the waits of an overlapped engine sent as they are, as they tell whose end is known;
            otherwise `elapsed_ns` is the held time.
        shared: Other processes get some of the engine's records. Then the time between two of ours
            says nothing, and held time is not added up.
    """

    def __init__(
        self,
        pid: int,
        engine_index: int,
        incarnation: int,
        flags: int,
        read: Callable[..., StepReport | None],
        *,
        late: bool = False,
        shared: bool = False,
    ) -> None:
        self.drops = 0
        self._head = (pid, engine_index, wire.BYTES, incarnation)
        self._holds = bool(flags & wire.OVERLAPPED) and not shared
        self._flags = flags | wire.HELD_TOTALS if self._holds else flags
        self._read = read
        self._sequence = 0
        self._totals = list(NOTHING_YET)
        self._last = Facts()
        self._late = late
        self._held = Held(since_ns=incarnation)

    def record(self, t_ns: int, kept: tuple[Any, ...]) -> bytes | None:
        """Return the next record; None if there is none to make, or if it cannot be made."""
        try:
            read = self._read(*kept)
            if read is None:
                return None
            facts, counted, dummy, prompt_ns = read
            totals = self._totals.copy()
            held_ns, held = None, self._held
            if self._holds:
                held_ns, held = next_held(
                    held,
                    t_ns,
                    facts,
                    rested=not leaves_work(self._last),
                    counted=counted,
                    late=self._late,
                    prompt_ns=prompt_ns,
                )
                if counted and not self._late:
                    facts = facts._replace(elapsed_ns=held_ns)
            if counted:
                count(totals, facts, held_ns=held_ns, dummy=dummy)
            elif held_ns:
                totals[ELAPSED + wire.GENERATION] += held_ns
            flags = self._flags | wire.DUMMY if dummy else self._flags
            record = self._packed(wire.STEP, flags, self._sequence + 1, t_ns, facts, totals)
        except Exception:  # noqa: BLE001 # who knows what an engine of another version says
            self.drops += 1
            return None
        # Only now: an invalid total would make every later record unsendable.
        self._totals, self._last, self._held = totals, facts, held
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

    def _packed(
        self, kind: int, flags: int, sequence: int, t_ns: int, facts: Facts, totals: list[int]
    ) -> bytes:
        # In the order of `wire.Record`, without creating one: there are hundreds of steps per
        # second.
        totals[DROPS] = self.drops
        head = (wire.VERSION, kind, flags, *self._head, sequence, t_ns)
        return wire.pack(*head, *facts, *totals)
