"""One worker in trouble: its state is soon told truthfully, and others are unharmed."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_traits import leaders_writing
from disagg_cluster.supervisor.health.readiness import ProbeTarget, probe
from disagg_cluster.supervisor.process.child_process import start
from support.children import PYTHON, SERVER, STUBBORN, free_port, is_gone, wait_readable
from support.two_planes import MODEL, Node, node, standin_node, wait_until

TRUTH_SECONDS = 20.0
"""Twice what bench.faults holds each fault to, as tests have no core of their own."""


def pair(folder: Path, **victim: Any) -> dict[str, Any]:
    """The node file of a victim and its neighbour, which share nothing but the daemon."""
    file = standin_node(folder)
    for worker, name in zip(file["workers"], ("victim", "neighbour"), strict=True):
        worker |= {"name": name, "role": "mixed"}
    file["workers"][0] |= victim
    file["restart"] = {"backoff_first_seconds": 0.1, "backoff_max_seconds": 0.1}
    return file


def engine(folder: Path, script: str, interpreter: str = "/bin/sh") -> dict[str, Any]:
    """What makes a victim run a script in place of an engine."""
    program = folder / "engine"
    program.write_text(f"#!{interpreter}\n{script}")
    program.chmod(0o755)
    return {"engine": "vllm", "python": str(program)}


def state(planes: Node, worker: str) -> str:
    page = planes.daemon.page()
    [told] = [
        have["state"]
        for have, value in page.samples["disagg_worker_state"]
        if have["worker"] == worker and value == 1
    ]
    return told


def wait_state(planes: Node, worker: str, *states: str, seconds: float = TRUTH_SECONDS) -> None:
    wait_until(f"{worker} to be {states}", lambda: state(planes, worker) in states, seconds)


def wait_served(planes: Node) -> None:
    """Wait until the page is served."""
    wait_until("the page", lambda: "metrics page: " in planes.daemon.log(), 30.0)


def unharmed(planes: Node) -> None:
    page = planes.daemon.page()
    assert state(planes, "neighbour") == "ready"
    assert page.sum("disagg_worker_restarts_total", worker="neighbour") == 0
    assert page.sum("disagg_engine_up", engine="neighbour") == 1


@contextlib.contextmanager
def full_disk(logs: Path) -> Iterator[None]:
    """A small disk at this folder with no room on it; nothing, where that needs more rights."""
    options = "size=64k,nr_inodes=20,mode=0700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(logs)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield
        return
    try:
        with contextlib.suppress(OSError), (logs / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        yield
    finally:
        subprocess.run(["umount", "-l", str(logs)], check=True)


def test_a_full_disk_stops_no_supervision_and_is_reported(folder: Path) -> None:
    """Journal and log cannot be written; a worker that dies meanwhile is started again.

    The logs' disk is full, where we may mount one; where the journal is made lies a link, which is
    not followed.
    """
    file = pair(folder)
    logs = Path(file["run_dir"]) / "logs"
    logs.mkdir(parents=True)
    unfinished = logs.parent / ".journal.json.part"
    unfinished.symlink_to("/dev/full")
    with full_disk(logs), node(file, folder) as planes:
        planes.daemon.wait_ready()
        assert journal_success(planes) == 0
        [victim] = [
            pid
            for pid in leaders_writing(logs / "victim.log")
            if "victim" in procfs.command_line(pid)
        ]
        os.kill(victim, signal.SIGKILL)

        def again() -> bool:
            restarts = planes.daemon.page().sum("disagg_worker_restarts_total", worker="victim")
            return restarts == 1 and state(planes, "victim") == "ready"

        wait_until("the victim to serve again", again, 30.0)
        unharmed(planes)
        assert planes.daemon.log().count("cannot write the journal") == 1
        assert os.strerror(errno.ELOOP) in planes.daemon.log()

        unfinished.unlink()
        wait_until("the journal to be written", lambda: journal_success(planes) == 1, TRUTH_SECONDS)
        assert set(planes.pids()) == {"victim", "neighbour"}


def journal_success(planes: Node) -> float:
    return planes.daemon.page().sum("disagg_collector_success", collector="journal")


def test_a_foreign_server_on_the_port_is_named_and_waited_for(
    folder: Path,
) -> None:
    port = free_port()
    served = [*PYTHON, SERVER, str(port), MODEL]
    foreign = start(served, dict(os.environ), folder / "foreign.log")
    sleeps = engine(folder, "exec sleep 1000\n")
    file = pair(folder, port=port, restart={"crash_limit": 1}, **sleeps)
    try:
        answers = ProbeTarget(port, MODEL)
        wait_until("the foreign server", lambda: probe(answers, foreign.pid, 5).proven)
        with node(file, folder) as planes:
            wait_served(planes)
            wait_state(planes, "victim", "backoff")
            wait_state(planes, "neighbour", "ready", seconds=30.0)
            held = f"another process listens on port {port}: pid {foreign.pid} ("
            assert held in planes.daemon.log()
            unharmed(planes)
    finally:
        foreign.signal_group(signal.SIGKILL)
        assert wait_readable(foreign.pidfd)
        foreign.reap()


def test_a_stopped_engine_is_reported_as_hung_and_restarted(folder: Path) -> None:
    """Its process is alive but answers nothing, so it is killed and restarted."""
    with node(pair(folder), folder) as planes:
        planes.daemon.wait_ready()
        first = planes.pids()["victim"]
        # A hang within the grace period after ready would be ignored.
        wait_until("the grace to pass", lambda: uptime(planes) > 11)
        os.kill(first, signal.SIGSTOP)

        wait_until(
            "it to be called hung", lambda: state(planes, "victim") != "ready", TRUTH_SECONDS
        )
        assert "hangs: " in planes.daemon.log()
        unharmed(planes)
        wait_state(planes, "victim", "ready", seconds=30.0)
        assert planes.pids()["victim"] != first
        assert planes.daemon.page().sum("disagg_worker_restarts_total", worker="victim") == 1


WORKING = """
import os, signal, socket, sys, threading, time
from disagg_steps import wire
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
said = lambda name: sys.argv[sys.argv.index(name) + 1]
there = lambda name: os.path.exists(os.path.join({folder!r}, name))

class Page(BaseHTTPRequestHandler):
    log_message = lambda self, *_: None

    def do_GET(self):
        if there("slow"):
            time.sleep(30)
        page = ('{{"data": [{{"id": "%s"}}]}}' % said("--served-model-name")).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

def steps():
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(os.environ[wire.SOCKET_ENVIRONMENT])
    number, kind = 0, wire.HELLO
    while True:
        fields = dict.fromkeys(wire.Record._fields, 0) | {{
            "version": wire.VERSION, "kind": kind, "pid": os.getpid(), "incarnation": 1,
            "sequence": number, "t_ns": time.monotonic_ns(), "elapsed_ns": 1000000,
            "generation_requests": 1, "generation_tokens": 1, "running": 1,
            "steps_generation": number, "ns_generation": number * 1000000,
        }}
        link.send(wire.encode(wire.Record(**fields)))
        time.sleep(0.1)
        kind = wire.HEARTBEAT if there("idle") else wire.STEP
        number += kind == wire.STEP

threading.Thread(target=steps, daemon=True).start()
server = ThreadingHTTPServer(("127.0.0.1", int(said("--port"))), Page)
server.daemon_threads = True
server.serve_forever()
"""
"""Goes silent when a file `slow` comes, and does no more steps once `idle` is there."""


def test_only_an_unresponsive_engine_without_work_is_killed(
    folder: Path,
) -> None:
    script = WORKING.format(folder=str(folder))
    patient = {
        "health": {"timeout_seconds": 0.3, "grace_seconds": 0.1},
        "restart": {"hang_probes": 3},
    }
    working = engine(folder, script, f"{PYTHON[0]} -S")
    file = pair(folder, **patient, **working) | {"intervals": {"health_seconds": 0.1}}
    with node(file, folder) as planes:
        planes.daemon.wait_ready()

        def up() -> float:
            return planes.daemon.page().sum("disagg_engine_up", engine="victim")

        assert up() == 1
        (folder / "slow").touch()
        wait_until("it to be shown as silent", lambda: up() == 0, TRUTH_SECONDS)
        wait_until("it to be spared", lambda: "left alone" in planes.daemon.log(), TRUTH_SECONDS)
        time.sleep(1.5)  # five probes: that it is not killed cannot be awaited
        assert state(planes, "victim") == "ready"
        unharmed(planes)

        (folder / "idle").touch()
        wait_until("it to be called hung", lambda: "hangs: " in planes.daemon.log(), TRUTH_SECONDS)
        (folder / "slow").unlink()
        wait_until("its successor to answer", lambda: up() == 1, 30.0)
        assert planes.daemon.page().sum("disagg_worker_restarts_total", worker="victim") == 1


def uptime(planes: Node) -> float:
    page = planes.daemon.page()
    return time.time() - page.sum("disagg_worker_start_timestamp_seconds", worker="victim")


def test_a_worker_that_ignores_sigterm_is_ended_in_time(folder: Path) -> None:
    page = "".join(SERVER.replace("sys.argv[1]", "said('--port')").splitlines(keepends=True)[1:])
    page = page.replace("sys.argv[2]", "said('--served-model-name')")
    argument = "import sys\nsaid = lambda name: sys.argv[sys.argv.index(name) + 1]\n"
    stubborn = engine(folder, STUBBORN + argument + page, f"{PYTHON[0]} -SE")
    deadlines = {"start_seconds": 30, "drain_seconds": 0.1, "stop_seconds": 2}
    with node(pair(folder, deadlines=deadlines, **stubborn), folder) as planes:
        planes.daemon.wait_ready()
        victim = planes.pids()["victim"]
        planes.daemon.process.send_signal(signal.SIGINT)

        wait_state(planes, "victim", "draining")
        assert is_gone(victim, TRUTH_SECONDS)
        assert planes.daemon.process.wait(TRUTH_SECONDS) == 0
        said = planes.daemon.log()
        assert "did not end at SIGTERM: SIGKILL to the group" in said
        assert "victim: draining → stopped: ended by signal 9 (Killed)" in said
        assert "neighbour: draining → stopped: ended with exit code 0" in said


def test_a_worker_that_never_becomes_ready_is_ended_and_given_up(folder: Path) -> None:
    late = {"deadlines": {"start_seconds": 1, "stop_seconds": 1}, "restart": {"crash_limit": 2}}
    sleeps = engine(folder, "echo loading; exec sleep 1000\n")
    with node(pair(folder, **late, **sleeps), folder) as planes:
        wait_served(planes)
        assert state(planes, "victim") in ("starting", "backoff")

        wait_state(planes, "victim", "failed", seconds=2 + TRUTH_SECONDS)
        said = planes.daemon.log()
        assert "not ready within 1 s" in said
        assert "given up after 2 crashes" in said
        assert "\n  loading" in said
        wait_state(planes, "neighbour", "ready")
        unharmed(planes)
        [log] = leaders_writing(planes.run_dir / "logs" / "neighbour.log")
        wait_until(
            "its process to end",
            lambda: not leaders_writing(planes.run_dir / "logs" / "victim.log"),
            TRUTH_SECONDS,
        )
        assert procfs.is_alive(log)


def test_a_wall_clock_jump_changes_only_timestamps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day ahead, then two back: no worker counts as hung, no restart is delayed by a day."""
    shim, ahead = folder / "shim.so", folder / "ahead"
    source = Path(__file__).parents[1] / "support" / "clock_shim.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    ahead.write_text("0")
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("CLOCK_SHIM_FILE", str(ahead))
    with node(pair(folder), folder) as planes:
        monkeypatch.delenv("LD_PRELOAD")
        planes.daemon.wait_ready()
        for day in (1, -1):
            before = planes.daemon.page()
            ahead.write_text(str(86_400 * day))
            os.kill(planes.pids()["victim"], signal.SIGKILL)

            def back(count: float = before.sum("disagg_worker_restarts_total") + 1) -> bool:
                page = planes.daemon.page()
                ready = state(planes, "victim") == "ready"
                return ready and page.sum("disagg_worker_restarts_total") == count

            wait_until("the victim to serve again", back, 30.0)
            unharmed(planes)
            page = planes.daemon.page()
            started = page.sum("disagg_worker_start_timestamp_seconds", worker="victim")
            assert started == pytest.approx(time.time() + 86_400 * day, abs=30)
            idle = "disagg_gpu_idle_seconds_total"
            assert 0 <= page.sum(idle) - before.sum(idle) < 100
