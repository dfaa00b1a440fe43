"""Nodes with a worker that is moved, from their start to the end of all their processes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.faults.small_disk import small_disk
from bench.faults_control.kinds import MOVED
from bench.faults_control.moved_node import MovedNode

from support.routed_node import Users, routed_node
from support.two_planes import Clients

USERS, THINK_SECONDS = 3, 0.1
_SHIM = Path(__file__).parents[2] / "tests" / "support" / "clock_shim.c"


@contextlib.contextmanager
def moved_node(router_python: Path, seed: str, *, host: bool = False) -> Iterator[MovedNode]:
    """Run four stand-ins; with `host`, disk and clock can be changed, else programs run beside.

    Nothing of it is left afterwards, even after a failure.
    """
    with contextlib.ExitStack() as stack:
        made_in = tempfile.TemporaryDirectory(prefix="dn-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made_in))
        run_dir, clock = folder / "run", None
        if host:
            stack.enter_context(small_disk(folder / "d", "8m"))
            run_dir, clock = folder / "d" / "run", folder / "ahead"
            clock.write_text("0")
        restart = {"backoff_first_seconds": 0.1, "crash_limit": 1000}
        node_file = routed_node(
            folder, router_python, restart=restart, run_dir=str(run_dir), on_sigterm="leave"
        )
        for worker in node_file["workers"]:
            worker["deadlines"] = {"start_seconds": 30, "drain_seconds": 10, "stop_seconds": 3}
        made = MovedNode(
            folder,
            node_file,
            seed,
            moved=MOVED,
            users=lambda url: Users(url, USERS, THINK_SECONDS),
            direct=lambda prefill, decode: Clients(prefill, decode, count=1),
            clock=clock,
            under=_shimmed(folder, clock),
        )
        stack.enter_context(watched(made, beside=not host))
        yield made


@contextlib.contextmanager
def watched(made: MovedNode, *, beside: bool = False) -> Iterator[None]:
    """Watch a node and load its untouched engines until the block ends; then end all of it."""
    with contextlib.ExitStack() as stack:
        stack.callback(made.close)
        made.wait_routed()
        if beside and shutil.which("prometheus"):
            made.begin_beside()
        stack.enter_context(made.watch.running())
        stack.enter_context(made.direct.running())
        yield


def _shimmed(folder: Path, clock: Path | None) -> tuple[str, ...]:
    """Return a command prefix that shifts the wall clock by the seconds in a file."""
    if clock is None:
        return ()
    shim = folder / "clock_shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, _SHIM, "-ldl"], check=True)
    return ("env", f"LD_PRELOAD={shim}", f"CLOCK_SHIM_FILE={clock}")
