"""Engines are asked beside the daemon: neither its end nor a new beginning waits for one."""

from __future__ import annotations

import logging
import queue
import threading

from disagg_cluster.daemon.moving.engine_requests import EngineRequests
from disagg_cluster.switching.pair_probe import EngineAddress
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
