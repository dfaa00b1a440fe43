"""A worker's control group: found where it is ours, limited as configured, killed as a whole."""

import os
import signal
from pathlib import Path

import pytest

from disagg_cluster.config.worker import WorkerLimits
from disagg_cluster.supervisor.ownership.control_groups import ControlGroup, group_root
from disagg_cluster.supervisor.process.child_process import start
from support.children import PYTHON, LinePipe, is_gone, wait_readable

MOUNT = "31 23 0:28 {root} {at} rw,relatime - cgroup2 cgroup2 rw\n"
HIDES = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
        signal.pause()
    os._exit(0)
signal.pause()
"""


def fake(folder: Path, own: str, root: str = "/") -> Path:
    """Make a /proc/self with a mount at a folder, in which the own group exists and is ours."""
    proc = folder / "proc"
    proc.mkdir()
    (proc / "mountinfo").write_text(MOUNT.format(root=root, at=folder / "fs"))
    (proc / "cgroup").write_text(f"4:memory:/elsewhere\n0::{own}\n")
    group = folder / "fs" / own.removeprefix(root).lstrip("/")
    group.mkdir(parents=True)
    (group / "cgroup.procs").touch()
    return proc


def test_without_systemd_our_own_group_is_the_root(tmp_path: Path) -> None:
    proc = fake(tmp_path, "/a/b")

    assert group_root(proc, tmp_path / "none") == (tmp_path / "fs" / "a" / "b", "")


def test_the_group_is_resolved_relative_to_the_root_of_the_mount(tmp_path: Path) -> None:
    proc = fake(tmp_path, "/pods/x/b", root="/pods/x")

    assert group_root(proc, tmp_path / "none") == (tmp_path / "fs" / "b", "")


def test_under_systemd_only_a_delegated_group_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc, systemd = fake(tmp_path, "/unit.service/daemon"), tmp_path / "systemd"
    systemd.mkdir()
    unit = tmp_path / "fs" / "unit.service"
    (unit / "cgroup.procs").touch()
    root, why = group_root(proc, systemd)
    assert root is None
    assert "is not delegated to us (`Delegate=yes` in the unit)" in why

    def getxattr(path: Path, name: str) -> bytes:
        if path == unit and name == "trusted.delegate":
            return b"1"
        raise OSError(61, "No data available")

    monkeypatch.setattr(os, "getxattr", getxattr)
    assert group_root(proc, systemd) == (unit, "")


def test_without_a_cgroup_v2_mount_the_reason_is_returned(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("31 23 0:28 / /sys rw - sysfs sysfs rw\n")
    (tmp_path / "cgroup").write_text("0::/\n")

    assert group_root(tmp_path) == (None, "no control groups of version 2 are mounted")
    assert group_root(tmp_path / "none")[0] is None


def test_limits_are_written_and_taken_back(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    group = ControlGroup(tmp_path, Path("/run/x/logs/w.log"), "w")

    assert group.make(WorkerLimits(memory=8 << 30, tasks=512)) == ()
    assert (group.path / "memory.max").read_text() == str(8 << 30)
    assert (group.path / "pids.max").read_text() == "512"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+pids"  # the last that was asked
    assert group.make(WorkerLimits()) == ()
    assert (group.path / "memory.max").read_text() == "max"


def test_unavailable_limits_are_reported_and_the_others_are_set(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("pids")
    group = ControlGroup(tmp_path, Path("/run/x/logs/w.log"), "w")

    [problem] = group.make(WorkerLimits(memory=8 << 30, tasks=5))
    assert "the system gives us no control of memory" in problem
    assert (group.path / "pids.max").read_text() == "5"
    [problem] = ControlGroup(tmp_path / "none", Path("/l"), "w").make(WorkerLimits())
    assert "no control group can be made" in problem


def test_an_oom_kill_of_the_group_is_detected(tmp_path: Path) -> None:
    group = ControlGroup(tmp_path, Path("/run/x/logs/w.log"), "w")
    group.path.mkdir()
    events = group.path / "memory.events"
    events.write_text("low 0\noom 1\noom_kill 1\noom_group_kill 0\n")
    group.make(WorkerLimits())
    assert not group.was_out_of_memory()

    events.write_text("low 0\noom 2\noom_kill 3\noom_group_kill 1\n")
    assert group.was_out_of_memory()


@pytest.fixture
def root() -> Path:
    """A real group in which we may make others."""
    found, why = group_root()
    if found is None:
        pytest.skip(why)
    return found


def test_a_daemonized_process_ends_with_the_group_of_its_worker(root: Path, tmp_path: Path) -> None:
    """After a double fork, in another session and without environment, only the group shows it."""
    pipe = LinePipe(tmp_path)
    group = ControlGroup(root, tmp_path / "logs" / "w.log", "w")
    assert group.make(WorkerLimits()) == ()
    script = "import sys; sys.stdin = None\nimport time; time.sleep(0.3)\n" + HIDES
    child = start([*PYTHON, script, str(pipe.path)], {}, tmp_path / "logs" / "w.log")
    try:
        assert group.add(child.pid) == ""
        child.family.in_group = group.pids
        child.family.kill_group = group.kill
        hidden = int(pipe.line())
        assert hidden in child.survivors()
        assert child.signal_group(signal.SIGKILL)
        assert is_gone(hidden)
        assert wait_readable(child.pidfd)
    finally:
        group.kill()
        child.reap()
        pipe.close()
    group.remove()
    assert not group.path.exists()


def test_a_group_that_contains_our_own_process_is_not_killed(tmp_path: Path) -> None:
    group = ControlGroup(tmp_path, Path("/run/x/logs/w.log"), "w")
    group.path.mkdir()
    (group.path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    group.kill()
    assert not (group.path / "cgroup.kill").exists()
