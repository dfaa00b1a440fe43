"""Planned moves under load: a real daemon, stand-ins, a real vllm-router, continuous requests."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from disagg_cluster.control.client import ask, new_request
from disagg_cluster.control.messages import ReassignWorker, ReplyOutcome
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Role
from support.routed_node import Users, routed_node, wait_routed
from support.running_node import RunningNode, running_node

CALM_SECONDS = 30.0
PROVEN = "proven; drained in"
USERS, THINK_SECONDS = 4, 0.05
SILENCE_SECONDS = 120.0
"""A move has failed after this long without an answer from the daemon."""

_TURNS = (
    ("decode-1", Role.PREFILL),
    ("decode-1", Role.DECODE),
    ("prefill-1", Role.DECODE),
    ("prefill-1", Role.PREFILL),
)


def moved(count: int, router_python: Path) -> dict[str, Any]:
    """Move workers between roles this often, and return how users' requests were affected."""
    with tempfile.TemporaryDirectory(prefix="dn-") as name:
        folder = Path(name)
        with running_node(routed_node(folder, router_python), folder) as node:
            return _moved(count, node, RunFolder(folder / "run").control)


def _moved(count: int, node: RunningNode, socket: Path) -> dict[str, Any]:
    wait_routed(socket, node)
    users = Users(node.url("router"), USERS, THINK_SECONDS)
    try:
        # The baseline without moves.
        time.sleep(CALM_SECONDS)
        began = time.monotonic()
        outcomes = [_move(socket, number) for number in range(count)]
        ended = time.monotonic()
    finally:
        users.stop()
    calm = users.within(lambda at: at < began)
    busy = users.within(lambda at: began <= at <= ended)
    return summary(outcomes) | {
        "requests": len(calm) + len(busy),
        "requests_failed": len(users.failed),
        "failures": users.failed[:5],
        "p50_seconds_calm": _quantile(calm, 0.5),
        "p99_seconds_calm": _quantile(calm, 0.99),
        "p50_seconds_moving": _quantile(busy, 0.5),
        "p99_seconds_moving": _quantile(busy, 0.99),
        "seconds_a_move": (ended - began) / count,
    }


def summary(outcomes: Sequence[tuple[ReplyOutcome, str]]) -> dict[str, Any]:
    """Return the number of proven moves, and their longest effect and downtime."""
    # A move that was rolled back is followed by one with nothing to do, which does not count.
    done = [text for outcome, text in outcomes if outcome is ReplyOutcome.DONE and PROVEN in text]
    return {
        "moves": len(outcomes),
        "moves_proven": len(done),
        "not_proven": [text for _, text in outcomes if PROVEN not in text][:10],
        "last": done[-1:],
        "longest_effect_seconds": max(map(_effect_seconds, done), default=0.0),
        "longest_downtime_seconds": max(map(_downtime_seconds, done), default=0.0),
    }


def _move(socket: Path, number: int) -> tuple[ReplyOutcome, str]:
    worker, role = _TURNS[number % len(_TURNS)]
    try:
        *_, final = ask(socket, new_request(ReassignWorker(worker, role)), SILENCE_SECONDS)
    except DisaggError as error:
        return ReplyOutcome.FAILED, str(error)
    if number % 10 == 9:
        sys.stderr.write(f"{number + 1} moves: {final.text}\n")
    return final.outcome, f"{final.text} {final.way_out}".strip()


def _effect_seconds(text: str) -> float:
    return float(text.rpartition("effect after ")[2].split()[0])


def _downtime_seconds(text: str) -> float:
    return float(text.partition(", down ")[2].split()[0])


def _quantile(rising: list[float], share: float) -> float:
    return rising[min(int(share * len(rising)), len(rising) - 1)] if rising else 0.0
