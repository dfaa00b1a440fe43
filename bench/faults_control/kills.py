"""Faults at random moments of a move: the daemon is killed, the worker, a peer, the router."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.faults import processes

from disagg_cluster.control.client import ask, new_request
from disagg_cluster.control.messages import ControlReply, ReassignWorker, ReplyOutcome
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Role
from support.routed_node import WORKERS, Users, routed_node, wait_routed, worker_views
from support.running_node import RunningNode

MOVE_SECONDS = 4.0
"""About how long a move takes here: faults are drawn from its whole length."""

USERS, THINK_SECONDS = 3, 0.1
MOVED, PEER = "decode-1", "decode-0"


class Faulty:
    """A node whose worker is moved to and fro while something is done to it."""

    def __init__(self, folder: Path, router_python: Path, seed: str) -> None:
        self._folder = folder
        deadlines = {"start_seconds": 20, "drain_seconds": 10, "stop_seconds": 3}
        self._node_file = routed_node(folder, router_python, restart={"backoff_first_seconds": 0.1})
        for worker in self._node_file["workers"]:
            worker["deadlines"] = deadlines
        self._socket = RunFolder(folder / "run").control
        self._drawn = random.Random(seed)
        self._node = RunningNode(self._node_file, folder)
        wait_routed(self._socket, self._node)

    def fault(self, kind: str, number: int) -> dict[str, Any]:
        """Begin a move, do the fault at a random moment of it, and see how it ends."""
        now = worker_views(self._socket)[MOVED]
        role = Role.PREFILL if now.role == Role.DECODE else Role.DECODE
        request_id = f"{kind}-{number}"
        users = Users(self._node.url("router"), USERS, THINK_SECONDS)
        try:
            begun = self._ask(role, request_id, wait=False)
            if begun.outcome is not ReplyOutcome.ACCEPTED:
                return {"outcome": f"not begun: {begun.text}", "requests_failed": 0}
            after = self._drawn.uniform(0.0, MOVE_SECONDS)
            # Where in the move the fault hits is by chance.
            time.sleep(after)
            told_seconds = self._do(kind)
            ended = self._ask(role, request_id, wait=True)
        finally:
            users.stop()
        self._settle()
        return {
            "kind": kind,
            "after_seconds": after,
            "outcome": ended.outcome.value,
            "text": ended.text,
            "told_seconds": told_seconds,
            "requests": len(users.answered),
            "requests_failed": len(users.failed),
            "doubled": self._doubled(),
        }

    def close(self) -> int:
        """End the node; how many processes are left."""
        self._node.stop()
        return sum(len(processes.engines_at(port)) for port in self._ports())

    def _do(self, kind: str) -> float:
        """Do it; after how many seconds a daemon says again how the worker stands."""
        began = time.monotonic()
        match kind:
            case "daemon":
                self._node.process.kill()
                self._node.process.wait()
                self._node = RunningNode(self._node_file, self._folder)
            case "router":
                pid = worker_views(self._socket)["router"].pid
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
            case "stopped":
                for pid in processes.engines_at(self._port(MOVED)):
                    os.kill(pid, signal.SIGSTOP)
            case _:
                for pid in processes.engines_at(self._port(MOVED if kind == "worker" else PEER)):
                    os.kill(pid, signal.SIGKILL)
        while True:
            try:
                worker_views(self._socket)
                return time.monotonic() - began
            except DisaggError:
                time.sleep(0.1)  # a killed daemon's successor announces itself to nobody

    def _ask(self, role: Role, request_id: str, *, wait: bool) -> ControlReply:
        """Ask until a daemon answers; it is the same request however often it is sent."""
        verb = ReassignWorker(MOVED, role)
        while True:
            try:
                request = new_request(verb, wait=wait, request_id=request_id)
                *_, final = ask(self._socket, request)
            except DisaggError:
                time.sleep(0.2)  # nor does it here
                continue
            return final

    def _settle(self) -> None:
        """Until all are ready and routed again: the next fault is a fault of its own."""
        for pid in processes.engines_at(self._port(MOVED)):
            os.kill(pid, signal.SIGCONT)
        wait_routed(self._socket, self._node)

    def _doubled(self) -> int:
        """Workers of which not exactly one process is there."""
        return sum(len(processes.engines_at(port)) != 1 for port in self._ports())

    def _ports(self) -> list[int]:
        return [self._port(name) for name in WORKERS]

    def _port(self, name: str) -> int:
        return int(self._node.workers[name]["port"])


def killed(counts: dict[str, int], router_python: Path, seed: str) -> dict[str, Any]:
    """Do so many faults of each kind, in a drawn order."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    random.Random(seed).shuffle(kinds)
    with tempfile.TemporaryDirectory(prefix="dn-") as name:
        node = Faulty(Path(name), router_python, seed)
        left = None
        try:
            found = [node.fault(kind, number) for number, kind in enumerate(kinds)]
            left = node.close()
        finally:
            if left is None:
                node.close()
    return {"left_processes": left, "faults": {kind: _of(kind, found) for kind in counts}}


def _of(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    mine = [fault for fault in found if fault.get("kind") == kind]
    return {
        "count": len(mine),
        "outcomes": dict(Counter(fault["outcome"] for fault in mine)),
        "not_done": [fault["text"] for fault in mine if fault["outcome"] != "done"][:5],
        "requests": sum(fault["requests"] for fault in mine),
        "requests_failed": sum(fault["requests_failed"] for fault in mine),
        "doubled": sum(fault["doubled"] for fault in mine),
        "longest_told_seconds": max((fault["told_seconds"] for fault in mine), default=0.0),
    }
