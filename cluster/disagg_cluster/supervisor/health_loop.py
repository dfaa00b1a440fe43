"""Checks one worker periodically: is it healthy, and has it finished its requests?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from disagg_cluster.lifecycle.state import (
    Drained,
    Event,
    Health,
    Lifecycle,
    Presence,
    Probed,
    Unwatched,
    WorkerState,
)
from disagg_cluster.supervisor.health.readiness import ProbeResult, ProbeTarget
from disagg_cluster.supervisor.process.retries import Retrier
from disagg_cluster.supervisor.worker_spec import SupervisorContext
from disagg_exporter.model import EnginePage

# Time slots of one interval for workers not yet known to be healthy. All others share one slot: one
# batch probe is much cheaper than four of a quarter each.
_SLOTS = 4

LATE_SECONDS = 5.0
"""A timer this late means that nothing was watched: the daemon was stopped meanwhile."""


class HealthLoop:
    """Health checks of one worker's processes, one process after the other.

    Args:
        worker: Its name.
        context: Clocks, probe and pages.
        life: Returns its present lifecycle.
        report: Receives each observation.
    """

    def __init__(
        self,
        worker: str,
        context: SupervisorContext,
        life: Callable[[], Lifecycle],
        report: Callable[[Event], None],
    ) -> None:
        self._worker = worker
        self._context = context
        self._life = life
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._retrier = Retrier(worker, context.supervision, context.reserve)
        self._next: asyncio.TimerHandle | None = None
        self._probing: asyncio.Future[ProbeResult] | None = None
        self._overdue = self._closed = False
        self._proven: frozenset[int] = frozenset()
        self._session = 0
        self._target = ProbeTarget(0, "")
        self._last_check = self._loop.time()

    def begin(self, session: int, target: ProbeTarget, in_seconds: float) -> None:
        """Check this process from now on, for the first time after this many seconds."""
        self._session, self._target = session, target
        self._proven = frozenset()
        self._last_check = self._loop.time()
        self._later(in_seconds)

    async def close(self) -> None:
        """End all checks; waits for a probe under way."""
        self._closed = True
        self._retrier.close()
        if self._next is not None:
            self._next.cancel()
        if self._probing is not None:
            await asyncio.gather(self._probing, return_exceptions=True)

    @property
    def unwatched_seconds(self) -> float:
        """How long no check of its process has completed, beyond what one may take.

        0 while none is to be made.
        """
        life = self._life()
        if self._closed or life.presence is not Presence.RUNNING or life.last_signal is not None:
            return 0.0
        may_take_seconds = self._target.timeout_seconds or 0.0
        return max(self._loop.time() - self._last_check - may_take_seconds, 0.0)

    def _later(self, seconds: float) -> None:
        if self._next is not None:
            self._next.cancel()
        if self._closed:
            return
        # In a time slot shared by all health loops, so that the event loop wakes once for all.
        slot_seconds = self._context.health_seconds / (1 if self._proven else _SLOTS)
        due_seconds = round((self._loop.time() + seconds) / slot_seconds) * slot_seconds
        self._next = self._loop.call_at(due_seconds, self._on_timer, due_seconds)

    def _on_timer(self, due_seconds: float) -> None:
        if self._loop.time() - due_seconds > LATE_SECONDS:
            self._report(Unwatched())
        self._check()

    def _check(self) -> None:
        """Probe a worker that should serve; check whether a draining one is done."""
        life = self._life()
        if life.presence is not Presence.RUNNING or life.last_signal is not None:
            return
        self._later(self._context.health_seconds)
        self._retrier.run("check its health", self._check_now)

    def _check_now(self) -> None:
        life = self._life()
        if life.state is WorkerState.DRAINING:
            self._last_check = self._loop.time()
            page = self._context.page_of(self._worker)
            # A page older than the drain may not know of the last requests.
            if page is not None and page.t_ns > life.since_ns and _is_done(page):
                self._report(Drained(life.generation))
        elif self._probing is None:
            began_ns = self._context.clock()
            self._probing = self._context.probe(self._target, self._session, self._proven)
            self._probing.add_done_callback(partial(self._probed, life.generation, began_ns))
        else:
            self._overdue = True

    def _probed(self, generation: int, began_ns: int, probing: asyncio.Future[ProbeResult]) -> None:
        self._probing = None
        if probing.cancelled():
            return
        self._last_check = self._loop.time()
        error = probing.exception()
        result = probing.result() if error is None else ProbeResult(Health.UNDECIDED, str(error))
        if result.proven and generation == self._life().generation:
            self._proven = result.proven
        what = f"{self._worker}: probe"
        if result.health is Health.UNDECIDED:
            self._context.supervision.failed(what, result.why)
        else:
            self._context.supervision.over(what)
        probed = Probed(generation, result.health, result.why, began_ns, self._worked_ns())
        self._report(probed)
        if self._overdue and not self._closed:
            # The probe outlasted its interval: check at once, so that a hang is not detected late.
            self._overdue = False
            self._check()

    def _worked_ns(self) -> int | None:
        what = f"{self._worker}: read its progress"
        try:
            worked_ns = self._context.worked_ns(self._worker)
        except Exception as error:  # noqa: BLE001 - a probe is not to be lost for it
            self._context.supervision.failed(what, error)
            return None
        self._context.supervision.over(what)
        return worked_ns


def _is_done(page: EnginePage) -> bool:
    return page.running == 0 and not page.waiting
