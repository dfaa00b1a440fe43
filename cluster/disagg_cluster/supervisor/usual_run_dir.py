"""The run folder where no node file names one: the usual, or an older one that is still in use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from disagg_cluster.host.run_dir.layout import (
    SERVICE_RUN_DIR,
    RunFolder,
    default_run_dir,
    older_run_dirs,
)
from disagg_cluster.host.run_dir.lock import holder
from disagg_cluster.supervisor.journal.journal import here, load
from disagg_cluster.supervisor.journal.journal_text import JournalError
from disagg_cluster.supervisor.ownership import adoption


def usual_run_dir(environ: Mapping[str, str], uid: int) -> Path:
    """The folder of a daemon without a `run_dir`.

    While a daemon of an earlier version runs in its own default folder, or engines that it left
    do, that one is used on: their sockets and logs are there. Afterwards it is the new one.
    """
    usual = default_run_dir(environ, uid)
    folders = (usual, *older_run_dirs(environ, uid))
    return next((folder for folder in folders if _is_in_use(RunFolder(folder))), usual)


def possible_run_dirs(environ: Mapping[str, str], uid: int) -> tuple[Path, ...]:
    """Where this node's daemon may be found without its node file: ours first, then a service's.

    A person who is root may have a session with a folder.
    """
    usual, older = default_run_dir(environ, uid), older_run_dirs(environ, uid)
    return tuple(dict.fromkeys((usual, *older, SERVICE_RUN_DIR)))


def _is_in_use(folder: RunFolder) -> bool:
    if holder(folder.lock) is not None:
        return True
    try:
        entries = load(folder.journal, here())
    except JournalError:
        return False
    return any(map(adoption.is_there, entries))
