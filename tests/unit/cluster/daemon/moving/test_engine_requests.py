"""Engines are asked beside the daemon: neither its end nor a new beginning waits for one."""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from disagg_cluster.daemon.moving.engine_requests import EngineRequests
from disagg_cluster.switching.pair_probe import EngineAddress, ProbeFailedError
from disagg_cluster.switching.pd_switch import RoleCapability, SwitchResult
from disagg_exporter.model import Role


class ThreadRecordingEngine:
    """An engine that tells whether the thread that asks it holds up the end of the process."""

    def __init__(self) -> None:
        self.left: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def capability(self, url: str, api_key: str) -> RoleCapability:
        self.left.put(threading.current_thread().daemon)
        return RoleCapability(Role.DECODE, in_place=True)

    def switch(self, url: str, role: Role, api_key: str) -> SwitchResult:
        return SwitchResult(True, "")


def requests_to(engine: ThreadRecordingEngine) -> EngineRequests:
    def address(_worker: str) -> EngineAddress:
        return EngineAddress("http://d0", "m")

    return EngineRequests({"d0": "x"}, {"x": engine}, address, logging.getLogger(__name__))


def test_an_engine_that_does_not_answer_does_not_delay_the_shutdown() -> None:
    engine = ThreadRecordingEngine()
    requests = requests_to(engine)
    requests.begin("d0")

    assert engine.left.get(timeout=20)
    requests.close()


def test_requests_can_be_made_again_after_a_close() -> None:
    engine = ThreadRecordingEngine()
    requests = requests_to(engine)
    for _ in range(2):
        requests.begin("d0")
        engine.left.get(timeout=20)
        requests.close()


class Prober:
    """Probes that are answered when the test says so, except through peers that hang."""

    def __init__(self, *hanging: str) -> None:
        self.asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.released = threading.Event()
        self._hanging = hanging

    def __call__(self, prefill: EngineAddress, decode: EngineAddress) -> None:
        self.asked.put(prefill.url)
        if prefill.url in self._hanging:
            self.released.wait(20)
            raise ProbeFailedError(f"{prefill.url}: timed out")


def probed_by(prober: Prober, **settings: Any) -> EngineRequests:
    def address(_worker: str) -> EngineAddress:
        return EngineAddress("http://d0", "m")

    log = logging.getLogger(__name__)
    return EngineRequests({"d0": "x"}, {}, address, log, probe=prober, **settings)


P0, P1, P2 = (EngineAddress(f"http://p{n}", "m") for n in range(3))


def test_a_peer_that_hangs_does_not_keep_the_next_from_proving_a_role() -> None:
    prober = Prober(P0.url)
    requests = probed_by(prober)
    try:
        for _ in range(2):
            requests.probe("d0", Role.DECODE, [P0, P1])

        assert [prober.asked.get(timeout=20) for _ in range(2)] == [P0.url, P1.url]
        assert "a request of ours through http://p0" in requests.probe_trouble
    finally:
        prober.released.set()
        requests.close()


def test_no_more_peers_are_asked_than_leave_a_thread_for_questions() -> None:
    prober = Prober(P0.url, P1.url, P2.url)
    requests = probed_by(prober)
    try:
        for _ in range(5):
            requests.probe("d0", Role.DECODE, [P0, P1, P2])

        assert [prober.asked.get(timeout=20) for _ in range(2)] == [P0.url, P1.url]
        assert requests.probe_trouble == (
            "a request of ours through http://p0, http://p1 is not answered"
        )
    finally:
        prober.released.set()
        requests.close()
    assert prober.asked.empty()


def test_a_failed_probe_is_told_until_another_move_begins() -> None:
    prober = Prober(P0.url)
    prober.released.set()
    executor = ThreadPoolExecutor(1)
    requests = probed_by(prober, executor=lambda: executor)
    requests.probe("d0", Role.DECODE, [P0])
    executor.shutdown()

    assert requests.probe_trouble == "a request of ours failed: http://p0: timed out"
    requests.begin("d0")
    assert requests.probe_trouble == ""
