"""The folder with a daemon's sockets, its journal and its workers' logs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SERVICE_RUN_DIR = Path("/run/disagg-node")
"""The run folder of a daemon that systemd starts."""


class _Inside:
    """A path in the run folder, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, _owner: object) -> Path:
        return folder.path / self._name


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One daemon's folder, where the next daemon finds the state that outlives this one."""

    path: Path

    lock = _Inside("lock")
    """Held by the daemon that runs here."""
    journal = _Inside("journal.json")
    """The state that must outlive the daemon."""
    learned = _Inside("learned.json")
    """What was learned of engines."""
    whereabouts = _Inside("whereabouts.json")
    """Addresses of the daemon that runs here."""
    control = _Inside("control.socket")
    """Where the daemon that runs here answers requests; no worker's socket has this name."""
    control_grpc = _Inside("control-grpc.socket")
    """Where it answers them over gRPC, if the node file enables that."""
    grpc = _Inside("grpc")
    """The private folder of the sockets behind that."""
    logs = _Inside("logs")
    """The folder of the workers' logs."""
    daemon_log = _Inside("daemon.log")
    """The daemon's own output while its terminal shows the live view."""
    hook_log = _Inside("on_worker_failure.log")
    """Output of the command that failures are delivered to."""
    sim = _Inside("sim")
    """Where stand-ins write their devices' activity."""
    pods = _Inside("pods")
    """The folder with a folder, holding a steps socket, for each pod that requested it."""
    attached_socket = _Inside("attached/steps.sock")
    """Where an engine that a person starts on this host reports its steps."""

    @property
    def checkpoints(self) -> tuple[Path, Path]:
        """The accounting for the next daemon; written in turn."""
        return self.path / "accounting-0.json", self.path / "accounting-1.json"

    def socket(self, worker: str) -> Path:
        """Return the socket on which a worker's engine reports its steps."""
        return self.path / f"{worker}.sock"

    def log(self, worker: str) -> Path:
        """Return the file of a worker's output."""
        return self.logs / f"{worker}.log"


_NAMES = re.compile(
    r"lock|.+\.json(\.rejected)?|.+\.log(\.[0-9])?|sim|pods|attached|logs|.+\.sock|control(-grpc)?\.socket|grpc|\..+\.part"
)


def is_ours(name: str) -> bool:
    """Return whether a file of this name in a run folder may be one of ours."""
    return _NAMES.fullmatch(name) is not None


def default_run_dir(environ: Mapping[str, str], uid: int, host: str | None = None) -> Path:
    """Return the run folder where no node file names one; it outlives a logout.

    Not in XDG_RUNTIME_DIR, which is removed at the end of a session while engines still run. A home
    may be shared by many nodes, so each has a separate folder.

    Args:
        environ: The daemon's environment.
        uid: Its user; root's is in /run, others' in their state folder.
        host: The name of this node; the kernel's if None.
    """
    if uid == 0:
        return SERVICE_RUN_DIR
    state = Path(environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        if not environ.get("HOME"):
            return Path(f"/var/tmp/disagg-node-{uid}")
        state = Path(environ["HOME"]) / ".local" / "state"
    node = (host or os.uname().nodename).partition(".")[0]
    return state / "disagg-node" / node


def older_run_dirs(environ: Mapping[str, str], uid: int) -> tuple[Path, ...]:
    """Return the folders of earlier versions, whose engines may still run in one of them."""
    session = environ.get("XDG_RUNTIME_DIR")
    home = Path(environ.get("HOME") or "/tmp")
    cache = () if uid == 0 else (home / ".cache" / "disagg-node",)
    return (*((Path(session) / "disagg-node",) if session else ()), *cache)


def possible_run_dirs(environ: Mapping[str, str], uid: int) -> tuple[Path, ...]:
    """Return where this node's daemon may be found without its node file: ours, then a service's.

    A person who is root may have a session with a folder.
    """
    usual, older = default_run_dir(environ, uid), older_run_dirs(environ, uid)
    return tuple(dict.fromkeys((usual, *older, SERVICE_RUN_DIR)))
