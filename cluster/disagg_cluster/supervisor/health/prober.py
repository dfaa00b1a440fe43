"""Probes workers on threads: those healthy a moment ago in one batch, the others separately.

Every caller gets an answer: a probe that failed, got no thread, or took much longer than it may is
undecided, and says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from disagg_cluster.host.tcp_listeners import inodes_by_port
from disagg_cluster.lifecycle.state import Health
from disagg_cluster.supervisor.health.readiness import ProbeResult, ProbeTarget, health_request
from disagg_cluster.telemetry.pages.engine_tls import client_for
from disagg_exporter.collectors import DaemonThreads, NoThreadError
from disagg_exporter.http.client.page_poller import PagePoller
from disagg_exporter.http.tls_errors import TlsError

Probe = Callable[[ProbeTarget, int, float, frozenset[int]], ProbeResult]
"""As `readiness.probe`."""

# A healthy worker answers in a few milliseconds; a slower one is probed separately.
_PATIENCE_SECONDS = 0.1

# How long a probe may take beyond its deadline: for a free thread, and for the tables of listening
# sockets. Beyond that we ourselves were too late, and what was observed proves nothing.
_LATE_SECONDS = 3.0

_log = logging.getLogger(__name__)
_MAX_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class _PendingProbe:
    target: ProbeTarget
    session: int
    seconds: float
    proven: frozenset[int]
    until: float
    result: asyncio.Future[ProbeResult]

    def settle(self, seen: ProbeResult) -> None:
        """Answer the caller, but not with a failure that our own delay may have caused."""
        late = self.result.get_loop().time() > self.until
        if late and seen.health is not Health.HEALTHY:
            seen = _undecided("it took too long")
        if not self.result.done():
            self.result.set_result(seen)


class Prober:
    """Makes probes on request; made and used inside one running loop.

    Args:
        probe: Probes one worker.
        probe_seconds: The deadline of one probe, for a worker that sets none.
        workers: How many may be probed at a time: one that does not answer delays no other.
        late_seconds: What a probe may take beyond its deadline before it counts as not made.
    """

    def __init__(
        self,
        probe: Probe,
        probe_seconds: float,
        workers: int,
        late_seconds: float = _LATE_SECONDS,
    ) -> None:
        self._probe = probe
        self._probe_seconds = probe_seconds
        self._late_seconds = late_seconds
        # Besides one for each worker: a batch probe, and another that begins before it has ended.
        self._threads = DaemonThreads(workers + 2, "probe")
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_PendingProbe] = []

    def probe(
        self, target: ProbeTarget, session: int, proven: frozenset[int]
    ) -> asyncio.Future[ProbeResult]:
        """Probe a worker; `proven` is what the last healthy probe of its process proved.

        The result always arrives, `late_seconds` after the worker's deadline at the latest.
        """
        seconds = target.timeout_seconds or self._probe_seconds
        until = self._loop.time() + seconds + _PATIENCE_SECONDS + self._late_seconds
        pending = _PendingProbe(target, session, seconds, proven, until, self._loop.create_future())
        overdue = self._loop.call_at(until, pending.settle, _undecided("it took too long"))
        pending.result.add_done_callback(lambda _result: overdue.cancel())
        if not proven:
            self._probe_alone(pending)
        else:
            if not self._waiting:
                self._loop.call_soon(self._probe_batch)
            self._waiting.append(pending)
        return pending.result

    def allow_one_more(self) -> None:
        """Probe one more worker at a time."""
        self._threads.allow_one_more()

    def close(self) -> None:
        """End; a probe under way is not awaited."""
        self._threads.close()

    def _probe_batch(self) -> None:
        batch, self._waiting = self._waiting, []
        workers = [(pending.target, pending.proven) for pending in batch]

        def probe() -> None:
            try:
                seen = batch_probe(workers, _PATIENCE_SECONDS)
            except Exception:  # noqa: BLE001 - the caller needs an answer
                # It decides about none of them; each is probed separately.
                _log.debug("a check of all workers failed", exc_info=True)
                seen = (False,) * len(workers)
            self._call_in_loop(self._batch_probed, batch, seen)

        self._on_thread(probe, batch)

    def _batch_probed(self, batch: Sequence[_PendingProbe], seen: Sequence[bool]) -> None:
        for pending, well in zip(batch, seen, strict=True):
            if not well:
                self._probe_alone(pending)
            else:
                pending.settle(ProbeResult(Health.HEALTHY, "healthy", pending.proven))

    def _probe_alone(self, pending: _PendingProbe) -> None:
        def probe() -> None:
            try:
                seen = self._probe(pending.target, pending.session, pending.seconds, pending.proven)
            except Exception as error:  # noqa: BLE001 - the caller needs an answer
                _log.debug("a probe of port %d failed", pending.target.port, exc_info=True)
                seen = _undecided(f"{type(error).__name__}: {error}")
            self._call_in_loop(pending.settle, seen)

        self._on_thread(probe, [pending])

    def _on_thread(self, job: Callable[[], None], whose: Sequence[_PendingProbe]) -> None:
        try:
            self._threads.run(job)
        except NoThreadError as error:
            for pending in whose:
                pending.settle(_undecided(str(error)))

    def _call_in_loop(self, take: Callable[..., None], *arguments: object) -> None:
        # The loop may be closed already: then no caller waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(take, *arguments)


def _undecided(why: str) -> ProbeResult:
    return ProbeResult(Health.UNDECIDED, f"the probe itself failed: {why}")


def batch_probe(
    workers: Sequence[tuple[ProbeTarget, frozenset[int]]], patience_seconds: float
) -> tuple[bool, ...]:
    """Return for each worker whether it answers 200 on exactly the sockets proven its own.

    False decides nothing about a worker: a separate probe follows.

    Args:
        workers: Where each should answer, and the sockets that were proven to be its own.
        patience_seconds: For all answers together.
    """
    try:
        answered = _answered([target for target, _ in workers], patience_seconds)
        # After the answers: their senders were listening then.
        listening = inodes_by_port()
    except OSError:
        return (False,) * len(workers)
    return tuple(
        # At any address: others rarely listen on the same port at another address.
        bool(proven) and number in answered and listening.get(target.port) == proven
        for number, (target, proven) in enumerate(workers)
    )


def _answered(targets: Sequence[ProbeTarget], patience_seconds: float) -> set[int]:
    """Return the indices of those that answer their health path with 200."""
    with closing(PagePoller(_MAX_BYTES, keep=False)) as poller:
        left, answered = 0, set()
        for number, target in enumerate(targets):
            try:
                tls = None if target.tls is None else client_for(target.tls)
            except TlsError:
                continue
            poller.submit(
                health_request(str(number), target, target.health_path, patience_seconds, tls)
            )
            left += 1
        while left:
            for result in poller.poll():
                left -= 1
                # Any other is probed separately, which finds out what is wrong.
                if isinstance(result.page, bytes):
                    answered.add(int(result.request.key))
        return answered
