"""Faults of the host while a worker dies: disk, descriptors, threads, memory, output, clients."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
from pathlib import Path

from bench.faults.daemon_faults import BACK
from bench.faults.fault import Expected, Fault
from bench.faults.scene import Scene, Victim

PIDS = Path("/sys/fs/cgroup/pids")
DIES = Expected(state="a restart")
# While the daemon cannot act, it need not report the death; afterwards it must.
DIES_UNSEEN = Expected()
SERVES = Expected(dies=False, recovered_seconds=20.0)


# --- disk ---


def _fill(scene: Scene, victim: Victim) -> None:
    with contextlib.suppress(OSError), (scene.disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    victim.kill(signal.SIGKILL)


def _make_room(scene: Scene, _victim: Victim) -> None:
    (scene.disk / "filler").unlink(missing_ok=True)


def _fill_and_kill_daemon(scene: Scene, victim: Victim) -> None:
    _fill(scene, victim)
    scene.kill_daemon()
    scene.next_daemon()


def _read_only(scene: Scene, victim: Victim) -> None:
    disk = str(scene.disk)
    subprocess.run(["mount", "--bind", disk, disk], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
    victim.kill(signal.SIGKILL)


def _read_write(scene: Scene, _victim: Victim) -> None:
    subprocess.run(["umount", "-l", str(scene.disk)], check=False)


# Restarts are counted in the journal, which cannot be written during the fault.
UNJOURNALLED = Expected(state="a restart", resets=("disagg_worker_restarts_",))

DISK_FAULTS = (
    Fault("full", _fill, Expected(state="a journal that fails"), _make_room, 4.0, weight=3),
    Fault(
        "full, and the daemon is killed",
        _fill_and_kill_daemon,
        UNJOURNALLED,
        _make_room,
        5.0,
        weight=2,
    ),
    Fault(
        "read-only",
        _read_only,
        Expected(state="a journal that fails"),
        _read_write,
        4.0,
        weight=3,
    ),
)


# --- descriptors, memory ---


def _limit(scene: Scene, what: int, most: int) -> None:
    _, hard = resource.prlimit(scene.daemon, what)
    resource.prlimit(scene.daemon, what, (most, hard))


def _lift(scene: Scene, what: int) -> None:
    _, hard = resource.prlimit(scene.daemon, what)
    resource.prlimit(scene.daemon, what, (hard, hard))


def _descriptors(scene: Scene) -> int:
    return sum(1 for _ in Path(f"/proc/{scene.daemon}/fd").iterdir())


def _no_descriptor(scene: Scene, victim: Victim) -> None:
    _limit(scene, resource.RLIMIT_NOFILE, _descriptors(scene))
    victim.kill(signal.SIGKILL)


def _few_descriptors(scene: Scene, victim: Victim) -> None:
    """Leave a few: an operation that needs several gets some of them and then none."""
    spare = scene.chance.randrange(1, 6)
    _limit(scene, resource.RLIMIT_NOFILE, _descriptors(scene) + spare)
    victim.kill(signal.SIGKILL)


def _descriptors_back(scene: Scene, _victim: Victim) -> None:
    _lift(scene, resource.RLIMIT_NOFILE)


DESCRIPTOR_FAULTS = (
    Fault("none is left", _no_descriptor, DIES_UNSEEN, _descriptors_back, 3.0, weight=3),
    Fault("a few are left", _few_descriptors, DIES_UNSEEN, _descriptors_back, 3.0, weight=3),
)


def _no_memory(scene: Scene, victim: Victim) -> None:
    pages = int(Path(f"/proc/{scene.daemon}/statm").read_text().split()[0])
    _limit(scene, resource.RLIMIT_AS, pages * os.sysconf("SC_PAGE_SIZE") + 64 * 1024)
    victim.kill(signal.SIGKILL)


def _memory_back(scene: Scene, _victim: Victim) -> None:
    _lift(scene, resource.RLIMIT_AS)


MEMORY_FAULTS = (Fault("none is left", _no_memory, DIES_UNSEEN, _memory_back, 3.0),)


# --- threads ---


def _group(scene: Scene) -> Path:
    return PIDS / f"faults-{os.getpid()}-{scene.daemon}"


def _no_thread(scene: Scene) -> None:
    group = _group(scene)
    group.mkdir(exist_ok=True)
    (group / "cgroup.procs").write_text(str(scene.daemon))
    (group / "pids.max").write_text((group / "pids.current").read_text())


def _no_thread_and_hangs(scene: Scene, victim: Victim) -> None:
    _no_thread(scene)
    for each in scene.victims:
        each.kill(signal.SIGSTOP)


def _no_thread_and_a_death(scene: Scene, victim: Victim) -> None:
    _no_thread(scene)
    victim.kill(signal.SIGKILL)


def _threads_back(scene: Scene, _victim: Victim) -> None:
    for each in scene.victims:
        each.kill(signal.SIGCONT)
    group = _group(scene)
    (group / "pids.max").write_text("max")
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (PIDS / "cgroup.procs").write_text(pid)
    with contextlib.suppress(OSError):
        group.rmdir()


def _hang_after_no_thread(scene: Scene, victim: Victim) -> None:
    """A hang after threads are available again must be noticed."""
    _no_thread_and_hangs(scene, victim)
    scene.rest(3.0)
    _threads_back(scene, victim)
    victim.kill(signal.SIGSTOP)


THREAD_FAULTS = (
    Fault("none is to be had, engines pause", _no_thread_and_hangs, SERVES, _threads_back, 3.0),
    Fault(
        "none is to be had, an engine dies", _no_thread_and_a_death, DIES_UNSEEN, _threads_back, 3.0
    ),
    Fault(
        "none was to be had, an engine hangs",
        _hang_after_no_thread,
        Expected(state="an engine that is not up"),
    ),
)


# --- standard output ---


def _unread_and_a_death(scene: Scene, victim: Victim) -> None:
    victim.kill(signal.SIGKILL)


def _unread_and_leaves(scene: Scene, _victim: Victim) -> None:
    scene.leave()
    scene.next_daemon()


OUTPUT_FAULTS = (
    Fault("full and unread, an engine dies", _unread_and_a_death, DIES, weight=2),
    Fault("full and unread, the daemon leaves", _unread_and_leaves, BACK),
)


# --- page clients ---


class Crowd:
    """Hostile clients of the page, from an address of their own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, count: int, act: str) -> None:
        """Start this many clients that repeat one action."""
        self._threads = [threading.Thread(target=self._run, args=(act,)) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop the clients."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, act: str) -> None:
        import socket

        while not self._stop.is_set():
            try:
                with socket.socket() as link:
                    link.bind(("127.0.0.9", 0))
                    link.settimeout(0.5)
                    link.connect(("127.0.0.1", self._port))
                    self._talk(link, act)
            except OSError:
                self._stop.wait(0.02)

    def _talk(self, link: object, act: str) -> None:
        import socket

        assert isinstance(link, socket.socket)
        if act == "flood":
            link.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while link.recv(65536):
                pass
        elif act == "huge":
            link.sendall(b"GET / HTTP/1.1\r\n")
            for number in range(100):
                link.sendall(b"X-%d: " % number + b"x" * 65_000 + b"\r\n")
        else:
            for byte in b"GET /metrics HTTP/1.1\r\nHost: x\r\n":
                link.sendall(bytes((byte,)))
                if self._stop.wait(0.3):
                    return


def crowd(act: str, count: int) -> Fault:
    """Return a fault of clients that repeat one action while an engine dies."""
    here: list[Crowd] = []

    def inject(scene: Scene, victim: Victim) -> None:
        port = int(scene.node_file["listen"]["metrics"].rpartition(":")[2])
        here.append(Crowd(port))
        here[-1].begin(count, act)
        scene.rest(0.5)
        victim.kill(signal.SIGKILL)

    def heal(_scene: Scene, _victim: Victim) -> None:
        here.pop().end()

    return Fault(f"{count} of them: {act}", inject, DIES, heal, 4.0)


CLIENT_FAULTS = (crowd("slow", 80), crowd("flood", 8), crowd("huge", 30))
