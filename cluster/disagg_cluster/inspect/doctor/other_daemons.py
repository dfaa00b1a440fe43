"""Other daemons of ours on this host: engines that two of them attach to are counted twice."""

from __future__ import annotations

from pathlib import PurePath

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.tcp_listeners import holders, listeners

_NAME = "disagg-node"
_MODULE = "disagg_cluster.cli"


def starts_daemon(argv: tuple[str, ...]) -> bool:
    """Return whether a command line starts a daemon that looks for engines.

    A wrapper (sudo, timeout, a shell) has the same words after its own name.
    """
    runs = argv[:1] if not argv or not _is_python(argv[0]) else argv
    for place, argument in enumerate(runs):
        if PurePath(argument).name == _NAME or argument == _MODULE:
            return argv[place + 1 : place + 2] == ("start",)
    return False


def _is_python(program: str) -> bool:
    return PurePath(program).name.startswith("python")


def other_daemons(port: int | None) -> tuple[int, ...]:
    """Return the processes of daemons that do not listen on `port`, that of the one asked.

    Args:
        port: That of the daemon that answered; None if none did.
    """
    found = [pid for pid in procfs.pids() if starts_daemon(procfs.command_line(pid))]
    if not found:
        return ()
    try:
        inodes = frozenset(inode for _, inode in listeners(port)) if port else frozenset()
    except OSError:
        return ()
    own = set(holders(inodes, found))
    return tuple(pid for pid in found if pid not in own)
