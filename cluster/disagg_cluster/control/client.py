"""Client for the control socket in a daemon's run folder."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from disagg_cluster.control.messages import (
    ControlReply,
    ControlRequest,
    ReassignWorker,
    Verb,
    answer_seconds,
)
from disagg_cluster.control.wire import MOST_BYTES, WireError, decode_reply, encode_request
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.run_dir.lock import holder
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Role

EXIT_REFUSED = 3
EXIT_NO_DAEMON = 4
EXIT_TIMEOUT = 5

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 10.0


class NoDaemonError(DisaggError):
    """No daemon answers at a socket; the message says what to do."""

    exit_code = EXIT_NO_DAEMON


_NOT_FOR_US = "is not for this user: ask as root or as the user of the daemon"


class MayNotAskError(DisaggError):
    """This user may not use the daemon's socket."""

    exit_code = EXIT_REFUSED


class BrokenOffError(DisaggError):
    """The daemon could not be asked, or ended or stopped answering before the outcome was known."""


def check_access(folder: Path) -> None:
    """Reject a run folder that this user may not read, whose files would otherwise look missing.

    Raises:
        MayNotAskError: Reading it is not permitted. A missing folder is not an error here.
    """
    try:
        os.scandir(folder).close()
    except PermissionError:
        raise MayNotAskError(f"{folder} {_NOT_FOR_US}") from None
    except OSError:
        return


def new_request(
    verb: Verb,
    *,
    wait: bool = True,
    deadline_seconds: float | None = None,
    request_id: str | None = None,
) -> ControlRequest:
    """A request with a new id unless one is given."""
    return ControlRequest(request_id or uuid.uuid4().hex, verb, wait, deadline_seconds)


def reassign(
    path: Path, worker: str, role: Role, request_id: str, *, dry_run: bool = False
) -> ControlReply:
    """Ask the daemon at a socket to move a worker to the other phase; returns the final reply.

    Does not wait: `accepted` means that the move has begun, `refused` says why not. Repeating the
    request with the same `request_id` returns its progress. Raises the same errors as `ask`.
    """
    verb = ReassignWorker(worker, role, dry_run)
    *_, final = ask(path, ControlRequest(request_id, verb, wait=False), _ANSWER_SECONDS)
    return final


def ask(
    path: Path, request: ControlRequest, patience_seconds: float | None = None
) -> Iterator[ControlReply]:
    """Yields the replies to a request as they arrive; the last one is final.

    Args:
        path: The daemon's socket.
        request: The request to send.
        patience_seconds: How long the daemon may be silent. By default the limit for its first
            reply, then none: a change may take minutes to its next step.

    Raises:
        NoDaemonError: Nothing listens there.
        MayNotAskError: This user may not connect.
        BrokenOffError: There is no descriptor left for a connection, or it ended without a final
            reply.
    """
    with _connected(path) as link:
        try:
            link.sendall(encode_request(request))
            link.settimeout(patience_seconds or answer_seconds(request.verb))
            with link.makefile("rb") as stream:
                while line := stream.readline(MOST_BYTES + 1):
                    reply = decode_reply(line)
                    yield reply
                    if reply.outcome.final:
                        return
                    link.settimeout(patience_seconds)
        except TimeoutError:
            raise BrokenOffError(f"the daemon at {path} does not answer in time") from None
        except WireError as error:
            raise BrokenOffError(f"what answers at {path} is no disagg-node: {error}") from None
        except OSError as error:
            raise BrokenOffError(f"the daemon at {path} broke off: {error.strerror}") from None
    raise BrokenOffError(
        f"the daemon at {path} ended before the outcome was known; "
        "disagg-node status shows how its successor stands"
    )


def _connected(path: Path) -> socket.socket:
    try:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        # The fault is on our side and says nothing about the daemon.
        raise BrokenOffError(f"the daemon at {path} cannot be asked: {error.strerror}") from None
    link.settimeout(_CONNECT_SECONDS)
    try:
        link.connect(str(path))
    except OSError as error:
        link.close()
        if isinstance(error, PermissionError):
            raise MayNotAskError(f"{path} {_NOT_FOR_US}") from None
        why = error.strerror or str(error)
        pid = holder(RunFolder(path.parent).lock)
        if pid is not None:
            raise NoDaemonError(
                f"the daemon in {path.parent} (pid {pid}) does not answer yet, or no more ({why}): "
                "ask again in a moment; if that lasts, its log says why"
            ) from None
        raise NoDaemonError(
            f"no daemon answers in {path.parent} ({why}): start one with `disagg-node start`, or "
            "name its run folder with --run-dir or its node file with --config"
        ) from None
    return link
