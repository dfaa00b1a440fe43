"""Makes a worker's process, unless one of its own is there already."""

from __future__ import annotations

from disagg_cluster.host.processes.process_traits import WORKER_MARK
from disagg_cluster.supervisor.ownership.adoption import find_unrecorded
from disagg_cluster.supervisor.ownership.port_holder import port_holder
from disagg_cluster.supervisor.process.child_process import Child, StartError, start
from disagg_cluster.supervisor.worker_spec import Post, Surroundings


def start_or_adopt(post: Post, around: Surroundings) -> Child:
    """Start a worker, or go on with its process that is there although nobody knew of it.

    Raises:
        StartError: It cannot be started, or another listens on its port.
    """
    command, target = post.command, post.target
    held = port_holder(target.host, target.port)
    if held is not None:
        found = find_unrecorded(post.sought)
        if found.child is None:
            raise StartError(held, refused=True)
        around.log.warning(
            "%s: %s; it is its own and is adopted, not started a second time", post.name, held
        )
        return found.child
    environment = {
        **around.child_environment(command.env),
        WORKER_MARK: str(post.log_path),
    }
    around.groups.prepare(post.name, post.log_path, post.limits)
    child = start(command.argv, environment, post.log_path, post.cwd)
    around.groups.enter(post.name, child, post.limits)
    return child
