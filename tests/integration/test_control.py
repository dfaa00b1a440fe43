"""A real daemon over stand-in engines, paused, mended and asked by its commands."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from disagg_cluster.cli.main import main
from disagg_cluster.demo.disaggregated_client import NIXL, complete
from disagg_cluster.host.processes import procfs
from disagg_exporter.http.client.scrape import fetch
from support.children import free_port
from support.running_node import RunningNode, running_node, wait_for
from support.two_planes import MODEL, standin_node


class Mended:
    """A running node and the commands that ask its daemon."""

    def __init__(self, node: RunningNode, run_dir: Path) -> None:
        self.node = node
        self._run_dir = run_dir

    def ask(self, *words: str) -> Result:
        return CliRunner().invoke(main, [*words, "--run-dir", str(self._run_dir)])

    def worker(self, name: str) -> dict[str, Any]:
        told = json.loads(self.ask("status", "--json").stdout)
        return next(worker for worker in told["workers"] if worker["worker"] == name)

    def wait_state(self, name: str, state: str) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            worker = self.worker(name)
            return worker if worker["state"] == state else None

        return wait_for(reached, f"{name} to be {state}")


@contextlib.contextmanager
def mended(node_file: dict[str, Any], folder: Path) -> Iterator[Mended]:
    with running_node(node_file, folder) as node:
        node.wait_ready()
        yield Mended(node, folder / "run")


def test_a_pause_outlasts_a_crash_and_a_daemon_restart_until_resumed(folder: Path) -> None:
    node_file = standin_node(folder, restart={"backoff_first_seconds": 0.01})
    with mended(node_file, folder) as first:
        assert first.ask("pause", "decode-0").stdout == "paused: decode-0\n"
        os.kill(first.worker("decode-0")["pid"], signal.SIGKILL)
        died = first.wait_state("decode-0", "backoff")
        assert died["pid"] is None
        assert "not started again while it is paused" in died["reason"]
        page = wait_for(
            lambda: (page := first.node.page()).sum("disagg_worker_paused") and page, "the gauge"
        )
        assert page.sum("disagg_worker_paused", worker="decode-0") == 1
        first.node.process.kill()
        first.node.process.wait()
        gone = first.ask("status")
        assert gone.exit_code == 4
        assert "\n    still running without it: prefill-0\n" in gone.stderr

    with running_node(node_file, folder) as node:
        second = Mended(node, folder / "run")
        wait_for(
            lambda: (
                second.ask("status").exit_code == 0
                and second.worker("prefill-0")["state"] == "ready"
            ),
            "the next daemon to have adopted the other worker",
        )
        assert second.worker("decode-0")["pid"] is None
        refused = second.ask("restart", "decode-0")
        assert refused.exit_code == 3
        assert "disagg-node resume decode-0, then restart it" in refused.stderr

        assert "started, as it is not running: decode-0" in second.ask("resume").stdout
        second.wait_state("decode-0", "ready")
        assert second.node.page().sum("disagg_worker_restarts_total", worker="decode-0") == 1


def test_a_restart_fails_no_request_that_was_running(folder: Path) -> None:
    with mended(standin_node(folder), folder) as asked, ThreadPoolExecutor(1) as clients:
        node, before = asked.node, asked.worker("decode-0")["pid"]
        urls = node.url("prefill-0"), node.url("decode-0")
        request = clients.submit(complete, *urls, MODEL, "word", 150, NIXL, 60.0)
        running = f'num_requests_running{{engine="0",model_name="{MODEL}"}} 1'
        page = f"{urls[1]}/metrics"
        wait_for(lambda: running in fetch(page, 5.0).decode(), "the request to be running")
        restarted = asked.ask("restart", "decode-0")

        assert restarted.exit_code == 0, restarted.output
        assert "decode-0: draining\n" in restarted.stderr
        assert restarted.stdout.startswith("decode-0: ready after")
        request.result()
        after = asked.worker("decode-0")
        assert after["pid"] != before
        assert not procfs.is_alive(before)
        assert after["restarts"] == 0


def test_a_failed_worker_becomes_ready_by_a_restart(folder: Path) -> None:
    node_file = standin_node(folder, restart={"backoff_first_seconds": 0.01, "crash_limit": 1})
    with mended(node_file, folder) as asked:
        os.kill(asked.worker("decode-0")["pid"], signal.SIGKILL)
        asked.wait_state("decode-0", "failed")
        shell = ShellComplete(main, {}, "disagg-node", "_DISAGG_NODE_COMPLETE")
        offered = shell.get_completions(["restart", "--run-dir", str(folder / "run")], "de")
        assert [(item.value, item.help) for item in offered] == [("decode-0", "failed")]

        accepted = asked.ask("restart", "decode-0", "--no-wait", "--json")
        assert json.loads(accepted.stdout)["outcome"] == "accepted"
        asked.wait_state("decode-0", "ready")

        late = asked.ask("restart", "decode-0", "--timeout", "0.001")
        assert late.exit_code == 5
        assert "it goes on" in late.stderr
        asked.wait_state("decode-0", "ready")


def test_a_crash_is_reported_to_the_hook_and_a_hanging_hook_delays_no_restart(folder: Path) -> None:
    told = folder / "told"
    hook = {"command": ["sh", "-c", f"cat >> {told}; sleep 300"], "events": ["crashed"]}
    quick = {"backoff_first_seconds": 0.01}
    node_file = standin_node(folder, restart=quick, on_worker_failure=hook)
    with mended(node_file, folder) as asked:
        pid = asked.worker("decode-0")["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: told.exists() and told.read_text().endswith("\n"), "the hook to be told")
        asked.wait_state("decode-0", "ready")

        failure = json.loads(told.read_text())
        assert (failure["event"], failure["worker"], failure["node"]) == (
            "crashed",
            "decode-0",
            "test",
        )
        assert (failure["exit_code"], failure["pid"]) == (-9, pid)
        assert any("stand-in engine decode-0" in line for line in failure["log_lines"])
        page = asked.node.page()
        assert page.sum("disagg_failure_hook_events_total", outcome="delivered") == 0
        assert page.sum("disagg_worker_restarts_total", worker="decode-0") == 1


def test_a_watch_shows_a_pause_and_the_end_of_the_daemon(folder: Path) -> None:
    command = [sys.executable, "-m", "disagg_cluster.cli", "status", "--watch"]
    with mended(standin_node(folder), folder) as asked:
        asking = [*command, "--run-dir", str(folder / "run")]
        watch = subprocess.Popen(asking, stdout=subprocess.PIPE, text=True)
        assert watch.stdout is not None
        head = watch.stdout.readline()
        assert head.startswith("disagg-node ")
        assert watch.stdout.readline().startswith("WORKER")
        assert asked.ask("pause", "decode-0").exit_code == 0
        while "decode-0 (decode): ready, paused" not in watch.stdout.readline():
            assert watch.poll() is None
    with watch, watch.stdout:
        rest = watch.stdout.read()

    assert watch.returncode == 0
    said = "\n".join(line[9:] for line in rest.splitlines())
    assert said.rstrip().endswith("the daemon has ended")
    assert said.index("the daemon is stopping") < said.index("decode-0 (decode): stopped")


def test_without_a_daemon_commands_say_how_to_start_one(folder: Path) -> None:
    named = (["restart", "w"], ["drain", "w"], ["explain", "w"])
    asked = (*named, ["pause"], ["resume"], ["status"], ["status", "-w"])
    for words in (*asked, ["reassign", "w", "--role", "decode"]):
        ran = CliRunner().invoke(main, [*words, "--run-dir", str(folder)])
        assert ran.exit_code == 4
        assert "start one with `disagg-node start`" in ran.stderr


def test_a_reload_applies_a_changed_node_file_at_the_next_worker_start(folder: Path) -> None:
    node_file = standin_node(folder)
    with mended(node_file, folder) as asked:
        pids = {name: asked.worker(name)["pid"] for name in ("prefill-0", "decode-0")}
        file = next(path for path in folder.glob("*.yaml"))
        changed = copy.deepcopy(node_file)
        [decode] = [each for each in changed["workers"] if each["name"] == "decode-0"]
        decode["env"] = {**decode.get("env", {}), "TOLD_BY": "the file"}
        file.write_text(yaml.safe_dump(changed))

        looked = asked.ask("reload", "--dry-run")
        nobody = asked.ask("reload")
        taken = asked.ask("reload", "--yes")
        again = asked.ask("reload", "--yes")

        assert looked.stdout == "decode-0: env: TOLD_BY\nwould be applied: decode-0\n"
        assert (nobody.exit_code, taken.exit_code) == (2, 0)
        assert taken.stdout.endswith("applied: decode-0\n")
        assert again.stdout == "the node file has no changes\n"
        assert {name: asked.worker(name)["pid"] for name in pids} == pids

        assert asked.ask("restart", "decode-0", "--now").exit_code == 0
        environment = Path(f"/proc/{asked.worker('decode-0')['pid']}/environ").read_bytes()
        assert b"TOLD_BY=the file" in environment
        assert asked.worker("prefill-0")["pid"] == pids["prefill-0"]

        come = {**decode, "name": "decode-9", "port": free_port()}
        changed["workers"] = [each for each in changed["workers"] if each is not decode]
        file.write_text(yaml.safe_dump({**changed, "workers": [*changed["workers"], come]}))
        shown = asked.ask("reload", "--dry-run").stdout
        assert shown == (
            "decode-9: is new in the file: decode (is started)\n"
            "decode-0: is no longer in the file (is drained and stopped)\n"
            "would be applied: decode-9, decode-0\n"
        )
        assert asked.ask("reload", "--yes").exit_code == 0
        asked.wait_state("decode-9", "ready")
        wait_for(lambda: "decode-0" not in asked.ask("status").stdout, "decode-0 to be gone")
        assert asked.worker("prefill-0")["pid"] == pids["prefill-0"]
        wait_for(
            lambda: (
                not asked.node.page().sum("disagg_engine_up", engine="decode-0")
                and asked.node.page().sum("disagg_engine_up", engine="decode-9")
            ),
            "the page to name who is there",
        )

        changed["links"] = {"grafana": "https://grafana.example.com"}
        file.write_text(yaml.safe_dump({**changed, "workers": [*changed["workers"], come]}))
        waits = "links.grafana (waits for the next daemon)"
        assert asked.ask("reload", "--dry-run").stdout.startswith(f"{waits}\n")
        assert f"node file: {waits}" in asked.ask("status").stdout

        file.write_text("workers: 7\n")
        wrong = asked.ask("reload", "--yes")
        assert wrong.exit_code == 2
        assert "nothing was changed" in wrong.stderr
