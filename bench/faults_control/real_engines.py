"""Moves of real vLLM engines on the CPU under load, and faults during them."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.faults_control.kills import Outcome, play, say
from bench.faults_control.kinds import Kind, another, answers, killed, stopped
from bench.faults_control.moved_node import MovedNode
from bench.faults_control.moves import summary
from bench.faults_control.scenes import watched

from disagg_exporter.model import Role
from support.routed_node import Users
from support.running_node import wait_for
from support.two_planes import Clients
from support.vllm_nodes import MODEL_NAME, TINY_MODEL, routed_engines_node
from support.vllm_session import make_model

MOVED = "prefill-1"
ENGINES = {"prefill-0": "prefill", MOVED: "prefill", "decode-0": "decode"}
PATIENCE_SECONDS, ANSWER_SECONDS, START_SECONDS = 180.0, 1800.0, 900.0
"""vLLM starts in 40 s on the CPU, and in more than 300 s on a shared machine."""

USERS, THINK_SECONDS = 2, 0.2
MOVE_SECONDS = 20.0
"""Faults are drawn from this first part of a move; the rest is the start of the engine."""


def _kill_core(node: MovedNode) -> None:
    pid = wait_for(lambda: node.core_of(MOVED), "an engine core", START_SECONDS)
    os.kill(pid, signal.SIGKILL)


REAL_KINDS = (
    Kind("engine core killed", _kill_core, another(MOVED), victim=MOVED, fails=True),
    stopped("moved worker stopped", MOVED),
    killed("moved worker killed", MOVED),
    Kind("daemon killed", MovedNode.kill_daemon, answers, ends=frozenset({"done"})),
    killed("router killed", "router"),
)


def real_faults(
    moves: int,
    vllm_python: Path,
    router_python: Path,
    seed: str,
    kinds: Sequence[Kind] = REAL_KINDS,
) -> dict[str, Any]:
    """Move a real engine, then inject each fault once; return the effects on users and others."""
    lacks = [str(path) for path in (vllm_python, router_python) if not path.exists()]
    if lacks:
        return {"not_run": {kind.name: f"no {lacks[0]}" for kind in kinds}}
    with tempfile.TemporaryDirectory(prefix="dn-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        node_file = routed_engines_node(
            ENGINES,
            python=vllm_python.absolute(),
            model=make_model(vllm_python.absolute(), folder / "model", TINY_MODEL),
            run_dir=folder / "run",
            router_python=router_python,
        )
        for worker in node_file["workers"]:
            worker["deadlines"]["start_seconds"] = START_SECONDS
        node = MovedNode(
            folder,
            node_file,
            seed,
            moved=MOVED,
            users=_users,
            direct=_direct,
            answer_seconds=ANSWER_SECONDS,
            start_seconds=START_SECONDS,
        )
        with watched(node):
            users = node.users()
            wait_for(lambda: len(users.answered) > 10, "users to be answered", PATIENCE_SECONDS)
            found: dict[str, Any] = {"moves": _moved(node, users, moves), "outcomes": []}
            for number, kind in enumerate(kinds, start=1):
                outcome: Outcome = play(node, kind, number, MOVE_SECONDS, START_SECONDS)
                found["outcomes"].append(outcome)
                say(f"real vLLM, {number} of {len(kinds)}", outcome)
                if outcome.observed.recovered_seconds is None:
                    break
            found["left_processes"] = node.left()
    return found


def _moved(node: MovedNode, users: Users, count: int) -> dict[str, Any]:
    replies = []
    try:
        for number in range(count):
            role = Role.PREFILL if node.role_of(MOVED) is Role.DECODE else Role.DECODE
            reply = node.move(role, f"move-{number}", wait=True)
            sys.stderr.write(f"real vLLM: {reply.text} {reply.way_out}\n")
            replies.append((reply.outcome, reply.text))
    finally:
        users.stop()
    return summary(replies) | {
        "requests": len(users.answered),
        "requests_failed": len(users.failed),
        "failures": users.failed[:5],
    }


def _users(url: str) -> Users:
    return Users(url, USERS, THINK_SECONDS, model=MODEL_NAME, patience_seconds=PATIENCE_SECONDS)


def _direct(prefill: str, decode: str) -> Clients:
    return Clients(prefill, decode, count=1, model=MODEL_NAME, patience_seconds=PATIENCE_SECONDS)
