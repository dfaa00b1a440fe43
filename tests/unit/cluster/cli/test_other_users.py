"""What a user is told who is neither root nor the daemon's: by a real process of nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.run_dir.lock import RunLock

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")

# All that they load is loaded before: nobody may not read the interpreter of root.
AS_NOBODY = """
import os, sys
import disagg_cluster.cli.stop, disagg_cluster.cli.workers.logs, disagg_cluster.control.client
import disagg_cluster.daemon.stop, disagg_cluster.nodefile, disagg_cluster.host.worker_logs
from disagg_cluster.cli.main import main
os.setgroups([]); os.setgid(65534); os.setuid(65534)
main(sys.argv[1:], prog_name="disagg-node")
"""


@pytest.fixture
def folder() -> Iterator[RunFolder]:
    """A run folder whose lock we hold, as a daemon does."""
    with tempfile.TemporaryDirectory(prefix="dn-") as made:
        Path(made).chmod(0o755)
        found = RunFolder(Path(made) / "run")
        with RunLock(found.lock):
            found.logs.mkdir()
            found.log("w").write_text("a line\n", encoding="utf-8")
            yield found


def as_nobody(*arguments: str) -> tuple[int, str, str]:
    ran = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *arguments], capture_output=True, text=True, check=False
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("command", [("stop",), ("stop", "--workers"), ("logs", "w")])
def test_a_run_folder_of_another_user_is_reported_as_not_accessible(
    folder: RunFolder, command: tuple[str, ...]
) -> None:
    folder.path.chmod(0o700)

    code, out, err = as_nobody(*command, "--run-dir", str(folder.path))

    assert (code, out) == (3, "")
    why = "is not for this user: ask as root or as the user of the daemon"
    assert err == f"disagg-node: {folder.path} {why}\n"


def test_stop_refuses_a_daemon_of_another_user(folder: RunFolder) -> None:
    folder.path.chmod(0o755)
    folder.lock.chmod(0o644)

    code, out, err = as_nobody("stop", "--run-dir", str(folder.path))

    assert (code, out) == (3, "")
    why = "is another user's: ask as root or as that user"
    assert err == f"disagg-node: the daemon (pid {os.getpid()}) {why}\n"
