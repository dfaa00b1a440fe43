"""A node is cut off from the others and returns: what is reported, and what others lose.

In the local cluster of `make run-cluster`: simulated engines, real daemons, a real Prometheus with
our rules, a network of its own.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import replace
from typing import Any

from scripts.local_cluster.plan import ClusterPlan, Door
from scripts.local_cluster.sandbox import Sandbox, running
from scripts.local_cluster.simulated import ENGINES, NODES, simulated_cluster

from disagg_cluster.prometheus.local_server import HOW_TO_GET, find_prometheus
from disagg_exporter.errors import DisaggError
from support.prometheus_query import query
from support.running_node import wait_for
from support.two_planes import Clients

CUT_SECONDS = (3.0, 12.0)
_ACCOUNTED = '{__name__=~"disagg_gpu_(phase|unobserved)_seconds_total"}'
_PASSED = "disagg_gpu_watermark_timestamp_seconds"
_STEPS = "disagg_engine_steps_total"


def cut_off(count: int, seed: str) -> dict[str, Any]:
    """Cut nodes off `count` times, one at a time for a random while, and return the outcomes."""
    prometheus = find_prometheus(os.environ, shutil.which)
    if prometheus is None:
        raise SystemExit(HOW_TO_GET)
    drawn = random.Random(f"partitions {seed}")
    with running(_with_engines(simulated_cluster(prometheus.absolute(), 0))) as sandbox:
        cluster = _Cluster(sandbox)
        # Steps of some seconds ago, so that growth during a cut is measured from before it.
        steps = f"{_STEPS} offset 5s > 0"
        wait_for(lambda: set(cluster.ask(steps)) == set(NODES), "steps of all nodes")
        cuts = [
            cluster.partition(drawn.choice(NODES), drawn.uniform(*CUT_SECONDS))
            for _ in range(count)
        ]
    return {
        "partitions": count,
        "longest_reported_seconds": max(each["reported_seconds"] for each in cuts),
        "longest_back_seconds": max(each["back_seconds"] for each in cuts),
        "others_reported_down": sum(each["others_reported_down"] for each in cuts),
        "requests": sum(each["requests"] for each in cuts),
        "requests_failed": sum(each["requests_failed"] for each in cuts),
        "restarts": sum(each["restarts"] for each in cuts),
        "gpu_seconds": sum(each["gpu_seconds"] for each in cuts),
        "gpu_seconds_lost": sum(abs(each["gpu_seconds_lost"]) for each in cuts),
        "increase_off_ratio": max(each["increase_off_ratio"] for each in cuts),
        "cuts": cuts,
    }


def _with_engines(plan: ClusterPlan) -> ClusterPlan:
    """Return the plan with doors to the engines, for users outside."""
    doors = tuple(
        Door(f"{machine.name} {role}", 0, machine.address, port)
        for machine in plan.machines
        for role, port in ENGINES.values()
    )
    return replace(plan, doors=plan.doors + doors)


class _Cluster:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def ask(self, expr: str) -> dict[str, float]:
        """Ask Prometheus for one value per node."""
        try:
            return self._ask_once(f"sum by (node) ({expr})")
        except DisaggError:  # not up yet
            return {}

    def _ask_once(self, expr: str) -> dict[str, float]:
        rows = query(self._sandbox.url("Prometheus"), expr)
        return {labels["node"]: value for labels, value in rows}

    def partition(self, victim: str, cut_seconds: float) -> dict[str, Any]:
        """Cut a node off while users send requests to the two others."""
        one, other = (node for node in NODES if node != victim)
        urls = (self._sandbox.url(f"{one} prefill"), self._sandbox.url(f"{other} decode"))
        began = time.monotonic()
        with Clients(*urls, count=2).running() as users:
            with self._sandbox.cut_off(victim):
                reported = self._until({victim: 0.0})
                # Stay cut off for the drawn time.
                time.sleep(cut_seconds)
            back = self._until(None)
        healed = time.time()
        self._settle(healed)
        seconds = round(time.monotonic() - began) + 1
        # One query each, so that all its values are from the same scrapes.
        passed = _grown(_PASSED, seconds)
        lost = self._ask_once(f"{passed} - ({_grown(_ACCOUNTED, seconds)})")
        increase = self._ask_once(
            f"sum by (node) (increase({_ACCOUNTED}[{seconds}s]))"
            f" / sum by (node) (delta({_PASSED}[{seconds}s]))"
        )
        others = f'1 - min_over_time(up{{node!="{victim}"}}[{seconds}s])'
        return {
            "node": victim,
            "cut_seconds": reported + cut_seconds,
            "reported_seconds": reported,
            "back_seconds": back,
            "others_reported_down": sum(self.ask(others).values()),
            "requests": users.completed,
            "requests_failed": len(users.failures),
            "restarts": sum(
                self.ask(f"increase(disagg_worker_restarts_total[{seconds}s])").values()
            ),
            "gpu_seconds": self._ask_once(passed)[victim],
            "gpu_seconds_lost": lost[victim],
            "increase_off_ratio": abs(increase[victim] - 1),
        }

    def _until(self, down: dict[str, float] | None) -> float:
        """Return how long it takes until these nodes, and no others, are reported down."""
        began = time.monotonic()
        wait_for(lambda: self.ask("up == 0") == (down or {}), f"{down} to be reported", 60)
        return time.monotonic() - began

    def _settle(self, moment: float) -> None:
        """Wait until all nodes are scraped again and have committed all time before a moment."""

        def settled() -> bool:
            marks = self.ask(f"{_PASSED} > bool {moment}")
            gpus = self.ask(f"count by (node) ({_PASSED})")
            return set(marks) == set(NODES) and marks == gpus

        wait_for(settled, "all time to be committed", 60)


def _grown(selector: str, seconds: int) -> str:
    """Return a query for the growth of a sum by node, tolerant of failed scrapes."""
    now, then = (
        f"sum by (node) (last_over_time({selector}[10s]{offset}))"
        for offset in ("", f" offset {seconds}s")
    )
    return f"{now} - {then}"
