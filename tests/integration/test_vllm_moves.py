"""Real vLLM engines are given to the other phase while users ask: nobody's request fails."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from disagg_cluster.control.client import ask, new_request
from disagg_cluster.control.messages import ReassignWorker, ReplyOutcome
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_exporter.model import Role
from support.routed_node import Users, wait_routed, worker_views
from support.running_node import Page, RunningNode, running_node, wait_for
from support.vllm_nodes import MODEL_NAME, TINY_MODEL, routed_engines_node
from support.vllm_session import Say, make_model

pytestmark = pytest.mark.vllm_long

ROUTER_PYTHON = os.environ.get("DISAGG_ROUTER_PYTHON", "")
ENGINES = {"prefill-0": "prefill", "prefill-1": "prefill", "decode-0": "decode"}
TURNS = (Role.DECODE, Role.PREFILL, Role.DECODE, Role.PREFILL, Role.DECODE)
MOVED, EFFECT_SECONDS = "prefill-1", 10.0


def test_five_moves_of_a_real_engine_are_proven_and_fail_no_request(
    vllm_python: Path, short_folder: Path, say: Say
) -> None:
    if not ROUTER_PYTHON:
        pytest.skip("DISAGG_ROUTER_PYTHON names no environment; `make test-vllm` makes one")
    folder = short_folder / "moved"
    folder.mkdir()
    node_file = routed_engines_node(
        ENGINES,
        python=vllm_python,
        model=make_model(vllm_python, short_folder / "moved-model", TINY_MODEL),
        run_dir=folder,
        router_python=Path(ROUTER_PYTHON),
    )
    socket = RunFolder(folder).control
    with running_node(node_file, folder) as node:
        wait_routed(socket, node)
        users = Users(node.url("router"), 2, 0.2, model=MODEL_NAME, patience_seconds=180.0)
        try:
            # The first requests through a new pair are slow.
            wait_for(lambda: len(users.answered) > 10, "users to be answered", 180)
            for number, role in enumerate(TURNS, start=1):
                *_, reply = ask(socket, new_request(ReassignWorker(MOVED, role)))
                say(f"{reply.text} {reply.way_out}".rstrip())
                assert (reply.outcome, "proven" in reply.text) == (ReplyOutcome.DONE, True)
                assert worker_views(socket)[MOVED].routed_as == role
                page = wait_for(partial(_told, node, number), "the page to count the move", 30)
                effect_seconds = page.sum("disagg_reassign_effect_seconds", worker=MOVED)
                assert 0.0 < effect_seconds <= EFFECT_SECONDS
        finally:
            users.stop()
        say(f"{len(users.answered)} requests, {len(users.failed)} failed: {users.failed[:3]}")
        assert users.failed == []


def _told(node: RunningNode, moves: int) -> Page | None:
    """The page once it counts so many moves."""
    page = node.page()
    done = page.sum("disagg_reassign_moves_total", worker=MOVED, outcome="done")
    return page if done == moves else None
