"""A real daemon gives a stand-in's GPUs to the other phase behind a real vllm-router, under load.

DISAGG_ROUTER_PYTHON names the interpreter of an environment with `vllm-router`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from disagg_cluster.cli.main import main
from disagg_cluster.host.run_dir.layout import RunFolder
from support.routed_node import Users, routed_node, wait_routed, worker_views
from support.running_node import running_node, wait_for

PYTHON = os.environ.get("DISAGG_ROUTER_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="DISAGG_ROUTER_PYTHON names no environment")


def ask(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--run-dir", str(folder / "run")])


def test_a_move_under_load_fails_no_request_and_outlives_its_daemon(folder: Path) -> None:
    node_file = routed_node(folder, Path(PYTHON))
    socket = RunFolder(folder / "run").control
    with running_node(node_file, folder) as first:
        wait_routed(socket, first)
        users = Users(first.url("router"))
        try:
            begun = ask(
                folder, "reassign", "decode-1", "--role", "prefill", "--id", "m1", "--no-wait"
            )
            assert begun.exit_code == 0, begun.output
            wait_for(lambda: "switching" in first.log() or None, "the move to be in its middle")
            first.process.kill()
            first.process.wait()
            gone = ask(folder, "status").stderr
            assert "decode-1 was being reassigned from decode to prefill, and goes on" in gone
            with running_node(node_file, folder) as second:
                wait_for(lambda: ask(folder, "status").exit_code == 0, "the next daemon")
                moved = ask(folder, "reassign", "decode-1", "--role", "prefill", "--id", "m1")
                assert moved.exit_code == 0, moved.output + second.log()
                assert "decode-1: serves as prefill, proven" in moved.stdout
                users.stop()
                assert (users.failed, len(users.answered) > 10) == ([], True)

                after = worker_views(socket)["decode-1"]
                assert (after.role, after.file_role) == ("prefill", "decode")
                assert after.routed_as == "prefill"
                done = {"worker": "decode-1", "outcome": "done"}
                page = wait_for(
                    lambda: (
                        (page := second.page()).sum("disagg_reassign_moves_total", **done) and page
                    ),
                    "the count of the move",
                )
                assert page.sum("disagg_reassign_effect_seconds", worker="decode-1") <= 10.0
                why = ask(folder, "explain", "decode-1").stdout
                assert "from decode to prefill (request m1) was proven" in why
                alone = ask(folder, "reassign", "decode-0", "--role", "prefill")
                assert alone.exit_code == 3
                assert "would be left without decode" in alone.stderr
                # Nor does a restart leave users without it, or a file that names another.
                assert ask(folder, "restart", "decode-0").stderr.endswith(
                    "--force restarts decode-0 all the same\n"
                )
                node_file["workers"] = [w for w in node_file["workers"] if w["name"] != "decode-0"]
                (folder / "node.yaml").write_text(yaml.safe_dump(node_file))
                gap = ask(folder, "reload", "--yes")
                assert gap.exit_code == 3
                assert "decode-0: demo-8b would be left without decode" in gap.stderr
        finally:
            users.stop()


def test_a_worker_drained_by_hand_serves_no_pool_until_it_is_resumed(folder: Path) -> None:
    with running_node(routed_node(folder, Path(PYTHON)), folder) as node:
        wait_routed(RunFolder(folder / "run").control, node)
        pools = {"prefill": 2.0, "decode": 2.0, "none": 0.0}

        def are(**roles: float) -> bool:
            page, by_role = node.page(), pools | roles
            return all(page.sum("disagg_node_role_gpus", role=r) == n for r, n in by_role.items())

        wait_for(lambda: are() or None, "the roles of all")
        drained = ask(folder, "drain", "decode-1")
        assert drained.exit_code == 0, drained.output
        wait_for(lambda: are(decode=1.0, none=1.0) or None, "the pool without it")
        assert node.page().sum("disagg_worker_drained") == 1.0
        assert ask(folder, "resume").stdout.rstrip().endswith("resumed by name: decode-1")
        assert node.page().sum("disagg_worker_drained", worker="decode-1") == 1.0

        assert ask(folder, "resume", "decode-1").exit_code == 0

        wait_for(lambda: are() or None, "the whole pool")
        assert node.page().sum("disagg_worker_drained") == 0.0
