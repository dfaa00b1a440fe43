"""`disagg-node` that finds engines only among some processes: `secluded_node.py PROC start …`.

Other test runs on this host start engines, too, which claim the same stub GPUs. PROC is a folder of
links into /proc; the rest of the daemon is as a user runs it.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

from disagg_cluster.cli.main import main
from disagg_cluster.discovery import attach_mode


def seclude(folder: Path) -> tuple[str, ...]:
    """Make such a folder, without any process yet; return the command of a node on it."""
    folder.mkdir()
    (folder / "self").symlink_to("/proc/self")
    return (sys.executable, __file__, str(folder), "start")


def let_see(folder: Path, pid: int) -> None:
    """Show a process to the node."""
    (folder / str(pid)).symlink_to(Path("/proc") / str(pid))


if __name__ == "__main__":
    proc = Path(sys.argv.pop(1))
    # The daemon reads it when it is composed.
    with patch.object(attach_mode, "AttachMode", partial(attach_mode.AttachMode, proc=proc)):
        main()
