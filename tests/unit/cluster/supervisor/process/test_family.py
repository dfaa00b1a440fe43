"""Descendants of a worker stay known, in whichever session they run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.host.libc import is_subreaper, subreaping
from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_table import below
from disagg_cluster.supervisor.process.child_process import ChildProcess, start
from disagg_cluster.supervisor.process.family import Descendants
from support.children import PYTHON, LinePipe, children, is_gone, wait_readable

TREE = """
import os, signal, sys
def say():
    print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        say()
        signal.pause()
    signal.pause()
signal.pause()
"""


@given(st.dictionaries(st.integers(2, 30), st.integers(1, 30)), st.sets(st.integers(1, 30)))
def test_below_returns_the_pids_with_a_root_among_their_ancestors(
    parents: dict[int, int], roots: set[int]
) -> None:
    def has_root_above(pid: int) -> bool:
        seen: set[int] = set()
        while pid in parents and pid not in seen:
            seen.add(pid)
            pid = parents[pid]
            if pid in roots:
                return True
        return False

    assert below(roots, parents) == {pid for pid in parents if has_root_above(pid)}


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[tuple[ChildProcess, int]]:
    """A leader, its child in another session, and the child of that one, whose pid is known."""
    pipe = LinePipe(tmp_path)
    # They inherit nothing that could identify them.
    child = start([*PYTHON, TREE, str(pipe.path)], {}, tmp_path / "logs" / "w.log")
    grandchild = int(pipe.line())
    yield child, grandchild
    for pid in (child.pid, procfs.parent_of(grandchild), grandchild):
        if pid is not None and pid > 1 and pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
    assert wait_readable(child.pidfd)
    child.reap()
    assert is_gone(grandchild)
    pipe.close()


def test_an_observed_descendant_stays_known_after_its_parent_has_died(
    tree: tuple[ChildProcess, int],
) -> None:
    child, grandchild = tree
    middle = procfs.parent_of(grandchild)
    assert middle is not None
    record = Descendants(is_ours=False)
    child.family.descendants = lambda: record.of(child.pid)
    assert child.survivors() == ()

    record.scan([child.pid])
    assert set(child.survivors()) == {middle, grandchild}
    os.kill(middle, signal.SIGKILL)
    assert is_gone(middle)
    record.scan([child.pid])
    assert child.survivors() == (grandchild,)
    assert child.signal_group(signal.SIGKILL)
    assert is_gone(grandchild)
    record.scan([])
    assert record.of(child.pid) == frozenset()


def test_a_reused_pid_is_not_a_descendant(
    tree: tuple[ChildProcess, int],
) -> None:
    child, grandchild = tree
    ticks = procfs.start_ticks(grandchild)
    assert ticks is not None
    child.family.descendants = lambda: {(grandchild, ticks + 1)}

    assert child.survivors() == ()
    assert child.watch(grandchild) is None


def test_orphans_are_reparented_to_the_subreaper_and_reaped(tmp_path: Path) -> None:
    """A helper of a helper: its parent has gone, so that no process would reap it."""
    script = "import os\nif os.fork() == 0:\n    os.setsid()\n    os._exit(0)\nos._exit(0)"
    assert not is_subreaper()
    with subreaping():
        assert is_subreaper()
        before = children()
        subprocess.run([sys.executable, "-S", "-c", script], check=True, start_new_session=True)
        (orphan,) = children() - before
        assert procfs.parent_of(orphan) == os.getpid()
        assert is_gone(orphan)
        record = Descendants(is_ours=True)
        for _ in range(2):
            assert orphan in children()
            record.scan([])
        assert orphan not in children()
    assert not is_subreaper()


def test_a_child_that_its_starter_waits_for_is_not_reaped() -> None:
    """A child is not reaped after one scan: its starter may be about to wait for it."""
    with subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"]) as ours:
        pidfd = os.pidfd_open(ours.pid)
        assert wait_readable(pidfd)
        os.close(pidfd)
        record = Descendants(is_ours=True)
        for _ in range(5):
            record.scan([])
        assert ours.wait() == 3
