"""Makes a worker's process, unless one of its own is there already."""

from __future__ import annotations

import socket

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_traits import WORKER_MARK
from disagg_cluster.host.tcp_listeners import holders, listeners, plain
from disagg_cluster.supervisor.ownership.adoption import find_unrecorded
from disagg_cluster.supervisor.process.child_process import ChildProcess, StartError, start
from disagg_cluster.supervisor.worker_spec import SupervisorContext, WorkerSpec

_SHOWN_CHARACTERS = 80


def start_or_adopt(spec: WorkerSpec, context: SupervisorContext) -> ChildProcess:
    """Start a worker, or go on with its process that is there although nobody knew of it.

    Raises:
        StartError: It cannot be started, or another listens on its port.
    """
    command, target = spec.command, spec.target
    held = port_holder(target.host, target.port)
    if held is not None:
        found = find_unrecorded(spec.sought)
        if found.child is None:
            raise StartError(held, refused=True)
        context.log.warning(
            "%s: %s; it is its own and is adopted, not started a second time", spec.name, held
        )
        return found.child
    environment = {
        **context.child_environment(command.env),
        WORKER_MARK: str(spec.log_path),
    }
    context.groups.prepare(spec.name, spec.log_path, spec.limits)
    child = start(command.argv, environment, spec.log_path, spec.cwd)
    context.groups.enter(spec.name, child, spec.limits)
    return child


def port_holder(host: str, port: int) -> str | None:
    """Say who listens where a worker is to; None if nobody does, or it cannot be seen whether.

    Args:
        host: An IP address.
        port: TCP port; 0 is nobody's.
    """
    try:
        inodes = _in_the_way(host, port) if port else frozenset()
    except OSError:
        return None
    return f"another process listens on port {port}: {_named(inodes)}" if inodes else None


def _in_the_way(host: str, port: int) -> frozenset[int]:
    """The sockets beside which nobody can listen at `host`:`port`, by their inodes.

    A worker may mean to listen on all addresses; only that one on all of IPv6 leaves IPv4 alone
    has to be tried, as no table shows it.
    """
    wanted = plain(host)
    found = {inode: a for a, inode in listeners(port) if a == wanted or a.is_unspecified}
    if wanted.version == 6 or any(address.version == 4 for address in found.values()):
        return frozenset(found)
    return frozenset() if found and _is_free(host, port) else frozenset(found)


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError:
            return False
    return True


def _named(inodes: frozenset[int]) -> str:
    for pid in holders(inodes, procfs.pids()):
        command = " ".join(" ".join(procfs.command_line(pid)).split())
        return f"pid {pid} ({command[:_SHOWN_CHARACTERS] or 'without a command line'})"
    return "of another user or container, which we may not look into"
