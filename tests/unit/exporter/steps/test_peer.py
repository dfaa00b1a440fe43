"""Whose process is at the other end: fake and real /proc, real sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from disagg_exporter.steps.local_sockets import in_session_of, peer_pid


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for pid, name, session in [(100, "python", 100), (101, "a) b (c", 100), (102, "x", 7)]:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S 1 {pid} {session} 0 -1 4 9")
    return tmp_path


@pytest.mark.parametrize(
    ("pid", "believed"), [(100, True), (101, True), (102, False), (103, False), (0, False)]
)
def test_only_the_leader_and_its_session_are_trusted(pid: int, believed: bool, proc: Path) -> None:
    assert in_session_of(100, pid, proc) is believed


def test_pid_0_has_no_session_members(proc: Path) -> None:
    assert in_session_of(0, 102, proc) is False
    assert in_session_of(0, 0, proc) is False


def test_session_membership_is_read_from_the_real_proc() -> None:
    # The test's own session is unsuitable: its leader may be outside this pid namespace.
    grandchild = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'])"
    leader = subprocess.Popen(
        [sys.executable, "-c", f"{grandchild}; print(p.pid, flush=True); p.wait()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert leader.stdout is not None
        member = int(leader.stdout.readline())
        assert in_session_of(leader.pid, member) is True
        assert in_session_of(leader.pid, os.getpid()) is False
        assert in_session_of(member, leader.pid) is False
    finally:
        leader.communicate(b"\n")


def test_the_peer_pid_is_reported_by_the_kernel() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        assert peer_pid(here) == os.getpid()
