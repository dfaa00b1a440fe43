"""Requests to engines during role changes, on threads that the daemon does not wait for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from disagg_cluster.lifecycle.reassignment.progress import SwitchAnswer
from disagg_cluster.switching.pair_probe import EngineAddress, ProbeFailedError, probe_pair
from disagg_cluster.switching.pd_switch import RoleCapability, RoleSwitchDriver, SwitchResult
from disagg_exporter.collectors import DaemonExecutor, NoThreadError, explain
from disagg_exporter.model import Role

_THREADS = 3
_MOST_PROBES = 2
"""A thread is left for questions."""

Probe = Callable[[EngineAddress, EngineAddress], None]


def _request_threads() -> Executor:
    # Abandoned when the daemon ends: an engine may take minutes to answer.
    return DaemonExecutor(_THREADS, "role-switch")


class EngineRequests:
    """Requests to the workers' engines; used within one running loop.

    Args:
        kinds: The engine kind of each worker.
        drivers: The role-switch driver of each engine kind.
        engine_of: Returns the address of a worker's engine.
        log: Logs the engines' answers.
        probe: Sends a request through a prefill and a decode engine.
        executor: Creates the executor for the requests.
    """

    def __init__(
        self,
        kinds: Mapping[str, str],
        drivers: Mapping[str, RoleSwitchDriver],
        engine_of: Callable[[str], EngineAddress],
        log: logging.Logger,
        *,
        probe: Probe = probe_pair,
        executor: Callable[[], Executor] = _request_threads,
    ) -> None:
        self._kinds = kinds
        self._drivers = drivers
        self._engine_of = engine_of
        self._log = log
        self._probe = probe
        self._make_executor = executor
        self._executor: Executor | None = None
        self._capabilities: dict[str, Future[RoleCapability]] = {}
        self._switches: dict[tuple[str, Role], Future[SwitchResult]] = {}
        self._probes: dict[str, Future[None]] = {}
        self._probe_failure = ""

    def begin(self, worker: str) -> None:
        """Discard earlier answers and ask a worker's engine for its capability again."""
        for key in [key for key in self._switches if key[0] == worker]:
            del self._switches[key]
        self._capabilities.pop(worker, None)
        self._probe_failure = ""
        driver = self._drivers.get(self._kinds[worker])
        if driver is not None:
            engine = self._engine_of(worker)
            self._capabilities[worker] = self._ask(driver.capability, engine.url, engine.api_key)

    def capability(self, worker: str) -> RoleCapability | None:
        """The reported capability of its engine; None while it has not answered."""
        asked = self._capabilities.get(worker)
        if asked is None:
            if self._kinds[worker] in self._drivers:
                self.begin(worker)
                return None
            return RoleCapability(why_not="engines of its kind are switched by a restart")
        if not asked.done():
            return None
        try:
            return asked.result()
        except Exception as error:  # noqa: BLE001 - an engine may send any answer
            return RoleCapability(why_not=explain(error))

    def switch(self, worker: str, role: Role) -> None:
        """Ask its engine to switch its role; once, until `begin` is called again."""
        driver, key = self._drivers.get(self._kinds[worker]), (worker, role)
        if driver is None or key in self._switches:
            return
        engine = self._engine_of(worker)
        self._log.info("%s: its engine is asked to become a %s engine", worker, role)
        self._switches[key] = self._ask(driver.switch, engine.url, role, engine.api_key)

    def answer(self, worker: str, role: Role) -> tuple[SwitchAnswer, str]:
        """The engine's answer to the request to switch its role."""
        asked = self._switches.get((worker, role))
        if asked is None or not asked.done():
            return SwitchAnswer.NONE, ""
        try:
            said = asked.result()
        except Exception as error:  # noqa: BLE001 - an engine may send any answer
            return SwitchAnswer.REFUSED, explain(error)
        return (SwitchAnswer.SAID_DONE if said.done else SwitchAnswer.REFUSED), said.text

    def probe(self, worker: str, role: Role, peers: Sequence[EngineAddress]) -> None:
        """Send a request through it and the first peer that owes no answer to an earlier one."""
        self._probes = {url: probe for url, probe in self._probes.items() if not probe.done()}
        if not peers:
            self._log.warning("%s: no ready peer to be probed with: work is waited for", worker)
            return
        free = [peer for peer in peers if peer.url not in self._probes]
        if not free or len(self._probes) >= _MOST_PROBES:
            return
        mine, peer = self._engine_of(worker), free[0]
        if self._kinds[worker] == "sglang" or "https" in (mine.url[:5], peer.url[:5]):
            # SGLang pairs need a bootstrap server, and TLS needs its clients' trust settings.
            self._log.info("%s: users' requests are waited for, to prove its role", worker)
            return
        pair = (mine, peer) if role is Role.PREFILL else (peer, mine)
        self._probes[peer.url] = self._ask(self._probe_now, worker, pair)

    @property
    def probe_trouble(self) -> str:
        """Why no request of ours proved anything; empty if none failed or is waited for."""
        waits = [url for url, probe in self._probes.items() if not probe.done()]
        if waits:
            return f"a request of ours through {', '.join(waits)} is not answered"
        return self._probe_failure and f"a request of ours failed: {self._probe_failure}"

    def close(self) -> None:
        """Release the threads until the next request, without waiting for them."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None

    @property
    def _threads(self) -> Executor:
        if self._executor is None:
            self._executor = self._make_executor()
        return self._executor

    def _ask(self, ask: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run a request on a thread; a failure to get a thread is returned as its result."""
        try:
            return self._threads.submit(ask, *args)
        except NoThreadError as error:
            refused: Future[Any] = Future()
            refused.set_exception(error)
            return refused

    def _probe_now(self, worker: str, pair: tuple[EngineAddress, EngineAddress]) -> None:
        try:
            self._probe(*pair)
        except ProbeFailedError as error:
            self._probe_failure = str(error)
            self._log.warning("%s: a request to prove its role failed: %s", worker, error)
