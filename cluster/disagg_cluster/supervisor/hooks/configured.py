"""The hook that a node file asks for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from disagg_cluster.config import NodeConfig
from disagg_cluster.supervisor.hooks.failure_hook import FailureHook


def failure_hook(
    config: NodeConfig, log_path: Path, environ: Mapping[str, str], log: logging.Logger
) -> FailureHook:
    """What is to be told of the failures of workers; if nothing is, it does nothing.

    Args:
        config: The node file.
        log_path: Where the output of a command goes.
        environ: Ours, of which a command gets what it needs.
        log: Told when deliveries begin to fail.
    """
    hook, names = config.on_worker_failure, (config.node, config.cluster)
    if hook is None:
        return FailureHook(None, (), *names, log)
    if hook.command is None:
        # A node without a URL does without OpenSSL in its memory.
        from disagg_cluster.supervisor.hooks.post_delivery import PostDelivery

        post = PostDelivery(hook.url or "", hook.deadline_seconds)
        return FailureHook(post, hook.events, *names, log)
    from disagg_cluster.supervisor.hooks.command_delivery import CommandDelivery

    command = CommandDelivery(hook.command, environ, log_path, hook.deadline_seconds)
    return FailureHook(command, hook.events, *names, log)
