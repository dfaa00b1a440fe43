"""The file in the run folder from which this node's commands know the daemon's address."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from disagg_cluster.host.files.atomic_write import write_whole
from disagg_cluster.host.processes import procfs
from disagg_exporter.http.listen import ListenAddress, ListenError, parse_listen
from disagg_exporter.steps.local_sockets import FileIdentity, identity_of, unlink_if_same

if TYPE_CHECKING:
    from disagg_cluster.config import Listen

_MOST_BYTES = 10_000
# The path may hold anything: opening a pipe would block, a link could lead elsewhere.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_log = logging.getLogger("disagg_node")


@dataclass(frozen=True, slots=True)
class DaemonEndpoint:
    """The address of a daemon's metrics page and its web-config file, if any."""

    address: ListenAddress
    web_config: Path | None = None


def near_url(address: ListenAddress, scheme: str = "http") -> str:
    """The root URL of a listening server, as reached from its own node."""
    everywhere = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
    host = everywhere.get(address.host, address.host)
    return f"{scheme}://{ListenAddress(host, address.port)}"


def of_file(listen: Listen) -> DaemonEndpoint:
    """The endpoint that a node file configures."""
    path = listen.web_config
    return DaemonEndpoint(listen.metrics_address, None if path is None else Path(path).absolute())


class EndpointFile:
    """Keeps a file with this process's address at a path while the block runs."""

    def __init__(self, path: Path, address: ListenAddress, listen: Listen) -> None:
        web_config = of_file(listen).web_config
        self._path = path
        self._text = json.dumps(
            {
                "pid": os.getpid(),
                "start_ticks": procfs.start_ticks(os.getpid()),
                "address": str(address),
                "web_config": None if web_config is None else str(web_config),
            }
        )
        self._identity: FileIdentity | None = None

    @property
    def is_in_place(self) -> bool:
        """Whether the file at the path is the one we wrote, or we could not write one."""
        return self._identity is None or identity_of(self._path) == self._identity

    def write(self) -> None:
        """Write the file; a failure is logged, but does not stop the measurement."""
        try:
            write_whole(self._path, self._text.encode(), 0o600)
            self._identity = identity_of(self._path)
        except OSError as error:
            # Commands then need --url.
            _log.warning("cannot write %s: %s", self._path, error.strerror)

    restore = write

    def __enter__(self) -> Self:
        """Write the file."""
        self.write()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the file, unless another process has replaced it."""
        unlink_if_same(self._path, self._identity)


def read_endpoint(path: Path) -> DaemonEndpoint | None:
    """The endpoint in a file whose daemon still runs; None if missing, stale or unreadable."""
    try:
        with os.fdopen(os.open(path, _FLAGS), "rb") as file:
            # Passwords are sent to this address, so only files of our user or root are trusted.
            if os.fstat(file.fileno()).st_uid not in (0, os.getuid()):
                return None
            fields = json.loads(file.read(_MOST_BYTES))
        pid, ticks, web_config = fields["pid"], fields["start_ticks"], fields["web_config"]
        if not procfs.is_alive(pid) or procfs.start_ticks(pid) != ticks:
            return None
        return DaemonEndpoint(
            parse_listen(fields["address"]), Path(web_config) if web_config else None
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ListenError):
        return None
