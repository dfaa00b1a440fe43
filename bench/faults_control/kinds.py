"""The faults injected into a node during a move, how they are reported, and how moves may end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.faults.scene import is_ready, is_up, success
from bench.faults.watch import Samples
from bench.faults_control.garbage import garbage
from bench.faults_control.moved_node import MovedNode

from disagg_cluster.control.messages import WorkerView
from disagg_cluster.lifecycle.state import WorkerState

MOVED, PEER, ROUTER = "decode-1", "prefill-1", "router"
GARBAGE_SECONDS, STOPPED_SECONDS = 3.0, 15.0
DONE, BACK = "done", "failed"
"""How a move ends: as requested, or rolled back and reported as failed."""


@dataclass(frozen=True, slots=True)
class Before:
    """The state just before a fault: the page, and the pids of the workers by name."""

    page: Samples
    pids: dict[str, int | None]


Reported = Callable[[MovedNode, Before], bool]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Args:
        name: Its name in the table.
        victim: The worker whose process it targets; empty if none.
        do: Injects it.
        reported: Whether the node's reported state is the true one.
        heal: Removes its cause, `lasts_seconds` after it was reported.
        fails: Whether users' requests may fail, as they were sent to what was killed or stopped.
        ends: How the move may end.
        programs: Whether it needs a Prometheus and a planner.
    """

    name: str
    do: Callable[[MovedNode], None]
    reported: Reported
    victim: str = ""
    heal: Callable[[MovedNode], None] = lambda _node: None
    lasts_seconds: float = 0.0
    fails: bool = False
    ends: frozenset[str] = field(default=frozenset({DONE, BACK}))
    programs: bool = False


def another(worker: str) -> Reported:
    """Return whether daemon and page report the worker as not serving, or another process."""

    def reported(node: MovedNode, before: Before) -> bool:
        views = node.views()
        return (
            views is not None
            and (views[worker].pid != before.pids[worker] or not _serves(views[worker]))
            and _on_page(node.page(), before.page, worker)
        )

    return reported


def _serves(view: WorkerView) -> bool:
    return view.state is WorkerState.READY and not view.unanswered


def _on_page(now: Samples, before: Samples, worker: str) -> bool:
    started = f'disagg_worker_start_timestamp_seconds{{worker="{worker}"}}'
    anew = now.get(started) != before.get(started)
    return anew or not is_ready(now, worker) or (worker != ROUTER and not is_up(now, worker))


def answers(node: MovedNode, _before: Before) -> bool:
    """Return whether the daemon reports the status of all its workers."""
    views = node.views()
    return views is not None and set(views) == {*node.ports, ROUTER}


def killed(name: str, worker: str) -> Kind:
    """Return the fault that kills a worker."""
    return Kind(
        name,
        lambda node: node.signal(worker, signal.SIGKILL),
        another(worker),
        victim=worker,
        fails=True,
    )


def stopped(name: str, worker: str) -> Kind:
    """Return the fault that stops a worker, which is then restarted meanwhile, or continues."""
    return Kind(
        name,
        lambda node: node.signal(worker, signal.SIGSTOP),
        another(worker),
        victim=worker,
        heal=lambda node: node.signal(worker, signal.SIGCONT),
        lasts_seconds=STOPPED_SECONDS,
        fails=True,
    )


def _fill(node: MovedNode) -> None:
    with contextlib.suppress(OSError), _filler(node).open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def _make_room(node: MovedNode) -> None:
    _filler(node).unlink(missing_ok=True)


def _filler(node: MovedNode) -> Path:
    return node.run_dir.with_name("filler")


def _a_full_disk(node: MovedNode, _before: Before) -> bool:
    # Once the move is over, the journal has nothing to write that could fail.
    failing = (success(node.page(), name) == 0.0 for name in ("journal", "learned"))
    return any(failing) and node.views() is not None


def _jump(seconds: int) -> Callable[[MovedNode], None]:
    def jump(node: MovedNode) -> None:
        assert node.clock is not None
        node.clock.write_text(str(seconds), encoding="utf-8")

    return jump


def _garbage(node: MovedNode) -> None:
    node.stack.enter_context(garbage(node.all_ports(), node.sockets(), str(node.chance.random())))
    node.rest(GARBAGE_SECONDS)


_CERTAIN = frozenset({DONE})
_DAY = 86_400

DAEMON = Kind("daemon killed", MovedNode.kill_daemon, answers, ends=_CERTAIN)
KINDS = (
    DAEMON,
    killed("moved worker killed", MOVED),
    stopped("moved worker stopped", MOVED),
    killed("a peer killed", PEER),
    stopped("a peer stopped", PEER),
    killed("router killed", ROUTER),
    Kind(
        "planner killed",
        lambda node: node.beside.planner.kill_and_start(),  # type: ignore[union-attr] # only with programs
        answers,
        ends=_CERTAIN,
        programs=True,
    ),
    Kind(
        "Prometheus killed",
        lambda node: node.beside.prometheus.kill_and_start(),  # type: ignore[union-attr] # as above
        answers,
        ends=_CERTAIN,
        programs=True,
    ),
    Kind(
        "garbage on every port and socket",
        _garbage,
        answers,
        heal=lambda node: node.stack.close(),
        ends=_CERTAIN,
    ),
)
HOST_KINDS = (
    Kind("disk full", _fill, _a_full_disk, heal=_make_room, lasts_seconds=3.0),
    Kind(
        "clock a day ahead", _jump(_DAY), answers, heal=_jump(0), lasts_seconds=8.0, ends=_CERTAIN
    ),
    Kind(
        "clock a day back", _jump(-_DAY), answers, heal=_jump(0), lasts_seconds=8.0, ends=_CERTAIN
    ),
)
