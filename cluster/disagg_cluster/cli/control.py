"""`disagg-node pause`, `resume` and `restart`: requests to a running daemon."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
from click.shell_completion import CompletionItem

from disagg_cluster.cli.number_range import NumberRange
from disagg_cluster.host.run_dir.layout import RunFolder, possible_run_dirs
from disagg_exporter.errors import EXIT_INTERRUPTED, DisaggError

if TYPE_CHECKING:
    from disagg_cluster.control.messages import ControlReply, ControlRequest, ReplyOutcome

_COMPLETION = b'{"version":1,"id":"completion","verb":"status"}\n'
_COMPLETION_SECONDS = 1.0
_EXIT_BAD_USAGE = 2
_MOST_COMPLETION_BYTES = 4 * 1024 * 1024


class DaemonClient(Protocol):
    """A daemon on this host or another."""

    def ask(
        self, request: ControlRequest, patience_seconds: float | None = None, /
    ) -> Iterator[ControlReply]:
        """Yields the replies as they arrive; the last one is final."""


@dataclass(frozen=True, slots=True)
class LocalDaemon:
    """The daemon at a socket of this host."""

    socket: Path

    def ask(
        self, request: ControlRequest, patience_seconds: float | None = None, /
    ) -> Iterator[ControlReply]:
        """As `client.ask`."""
        from disagg_cluster.control.client import ask

        return ask(self.socket, request, patience_seconds)


node_file_option = click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="The daemon's node file, which names its run folder.",
)
run_dir_option = click.option(
    "--run-dir",
    type=click.Path(path_type=Path, readable=False),
    help="The run folder of the daemon.",
)

_REMOTE = ("ca", "cert", "key", "token_file")
_FILE = click.Path(path_type=Path, dir_okay=False)


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--json` and the options that select a daemon, passed to the command as `daemon`."""

    @functools.wraps(command)
    def asking(file: Path | None, run_dir: Path | None, address: str | None, **said: Any) -> None:
        files = {name: said.pop(name) for name in _REMOTE}
        command(daemon=_selected(file, run_dir, address, files), **said)

    decorated: Callable[..., None] = asking
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print each answer as JSON."),
        click.option("--token-file", type=_FILE, help="With --address: a file with its token."),
        click.option("--key", type=_FILE, help="With --cert: its private key."),
        click.option("--cert", type=_FILE, help="With --address: our client certificate, in PEM."),
        click.option("--ca", type=_FILE, help="With --address: CA certificates to trust, in PEM."),
        click.option(
            "--address", metavar="HOST:PORT", help="A daemon on another host, over gRPC and TLS."
        ),
        node_file_option,
        run_dir_option,
    ):
        decorated = option(decorated)
    return decorated


def _selected(
    file: Path | None, run_dir: Path | None, address: str | None, files: Mapping[str, Path | None]
) -> DaemonClient:
    if address is None:
        if any(files.values()):
            raise click.UsageError("--ca, --cert, --key and --token-file go with --address")
        return LocalDaemon(socket_of(file, run_dir))
    if file is not None or run_dir is not None:
        raise click.UsageError("say either --address, or where its run folder is on this host")
    if (files["cert"] is None) is not (files["key"] is None):
        raise click.UsageError("--cert and --key go together")
    from disagg_cluster.control.remote.grpc_client import RemoteDaemon
    from disagg_exporter.http.listen import ListenError, parse_listen

    with contextlib.suppress(ListenError):
        there = parse_listen(address)
        if there.host and there.port:
            return RemoteDaemon(address, **files)
    raise click.UsageError(f"--address: {address!r} is not HOST:PORT, such as node-1:9849")


def socket_of(file: Path | None, run_dir: Path | None) -> Path:
    """The control socket of the selected daemon."""
    if file is not None and run_dir is not None:
        raise click.UsageError("say either --config or --run-dir")
    configured = run_dir
    if file is not None:
        from disagg_cluster.nodefile import load

        configured = load(file).run_folder
    if configured is not None:
        return RunFolder(configured).control
    # Our own and that of a service: a root user may have a session with its own folder.
    folders = list(possible_run_dirs(os.environ, os.getuid()))
    sockets = [RunFolder(folder).control for folder in folders]
    return next((socket for socket in sockets if socket.is_socket()), sockets[0])


def left_running(socket: Path) -> tuple[str, ...]:
    """The workers still running after their daemon has gone, as far as this user may see them."""
    from disagg_cluster.daemon.stop import left_behind

    return tuple(entry.worker for entry in left_behind(RunFolder(socket.parent)))


def carry_out(daemon: DaemonClient, request: ControlRequest, *, as_json: bool) -> None:
    """Send a change request, print its progress, and exit with the code of its outcome."""
    final = None
    try:
        for reply in daemon.ask(request):
            final = reply
            _print(reply, as_json=as_json)
    except KeyboardInterrupt:
        # Before the first reply it is unknown whether the change has begun.
        goes_on = "it goes on" if final is not None else "it may have begun"
        message = f"no longer waited for; {goes_on}: disagg-node status shows how it stands"
        click.echo(f"disagg-node: {message}", err=True)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    assert final is not None, "a stream of replies has an end"
    if code := exit_code(final.outcome):
        raise click.exceptions.Exit(code)


def _print(reply: ControlReply, *, as_json: bool) -> None:
    from disagg_cluster.control.messages import ReplyOutcome

    if as_json:
        click.echo(json.dumps(reply_value(reply)))
    elif reply.outcome in (ReplyOutcome.DONE, ReplyOutcome.ACCEPTED):
        click.echo(reply.text)
    elif reply.outcome is ReplyOutcome.PROGRESS:
        click.echo(reply.text, err=True)
    else:
        click.echo(error_text(reply), err=True)


def exit_code(outcome: ReplyOutcome) -> int:
    """The exit code for an outcome."""
    from disagg_cluster.control.client import EXIT_REFUSED, EXIT_TIMEOUT
    from disagg_cluster.control.messages import ReplyOutcome

    match outcome:
        case ReplyOutcome.DONE | ReplyOutcome.ACCEPTED:
            return 0
        case ReplyOutcome.REFUSED:
            return EXIT_REFUSED
        case ReplyOutcome.TIMEOUT:
            return EXIT_TIMEOUT
        case ReplyOutcome.INVALID:
            return _EXIT_BAD_USAGE
        case _:
            return 1


def reply_value(reply: ControlReply) -> dict[str, object]:
    """A reply for programs, as on the wire: without empty fields, and with `final`."""
    whole = asdict(reply) | {"final": reply.outcome.final}
    return {key: value for key, value in whole.items() if value not in ("", (), None)}


def worker_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completion of a worker's name from the selected daemon."""
    if ctx.params.get("address"):
        return []
    try:
        path = socket_of(ctx.params.get("file"), ctx.params.get("run_dir"))
    except (DisaggError, click.UsageError, OSError):
        return []
    return [
        CompletionItem(worker, help=state)
        for worker, state in _states(path, _COMPLETION_SECONDS).items()
        if worker.startswith(incomplete)
    ]


def _states(path: Path, deadline_seconds: float) -> dict[str, str]:
    """The states of a daemon's workers by name; empty if it does not answer in time.

    Uses only the standard library: loading the reply types takes longer than a user waits for
    completion.

    Args:
        path: The daemon's socket.
        deadline_seconds: Time limit for each step of the exchange.
    """
    states: dict[str, str] = {}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(deadline_seconds)
            link.connect(str(path))
            link.sendall(_COMPLETION)
            with link.makefile("rb") as stream:
                for line in stream.read(_MOST_COMPLETION_BYTES).splitlines():
                    worker = json.loads(line).get("worker")
                    if worker is not None:
                        states[worker["worker"]] = worker["state"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return states


def error_text(reply: ControlReply) -> str:
    """The error text of a failed request, with what to do."""
    what = "; ".join(filter(None, (reply.text, *reply.problems)))
    way_out = f"\n    {reply.way_out}" if reply.way_out else ""
    return f"disagg-node: {reply.outcome}: {what}{way_out}"


@click.command
@click.argument("worker", required=False, shell_complete=worker_names)
@options
def pause(worker: str | None, daemon: DaemonClient, as_json: bool) -> None:
    """Only observe a worker, or all workers: kill nothing, start nothing.

    A hung worker is not ended, a crashed one is not restarted, and one waiting for its restart
    keeps waiting, until `disagg-node resume`; also under the next daemon. States and metrics are
    still shown, and stopping the daemon still ends its workers.
    """
    from disagg_cluster.control.client import new_request
    from disagg_cluster.control.messages import PauseWorkers

    carry_out(daemon, new_request(PauseWorkers(worker)), as_json=as_json)


@click.command
@click.argument("worker", required=False, shell_complete=worker_names)
@options
def resume(worker: str | None, daemon: DaemonClient, as_json: bool) -> None:
    """Supervise a paused worker, or all paused workers, again; with a name, also end its drain.

    One that died in the meantime is started at once; a hung one gets its full time limits again.
    """
    from disagg_cluster.control.client import new_request
    from disagg_cluster.control.messages import ResumeWorkers

    carry_out(daemon, new_request(ResumeWorkers(worker)), as_json=as_json)


@click.command
@click.argument("worker", shell_complete=worker_names)
@click.option("--now", is_flag=True, help="Do not wait for its running requests.")
@click.option("--force", is_flag=True, help="Also if no other worker of its role serves its model.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready again.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=NumberRange(min=0, min_open=True, max=86_400),
    metavar="SECONDS",
    help="Stop waiting after this time; the restart goes on.  [default: its deadlines]",
)
@options
def restart(
    worker: str,
    now: bool,
    force: bool,
    no_wait: bool,
    timeout_seconds: float | None,
    daemon: DaemonClient,
    as_json: bool,
) -> None:
    """Drain a worker, end it and start it again; also one that has failed for good.

    Resets its crash count. Refused for a paused worker, and, behind a router of this node, for the
    only one that serves its model in its role, as users would get no answer meanwhile. Exits with 0
    when it is ready and gets requests, 1 if it failed, 3 if the restart was refused, 4 if no daemon
    answers, 5 if it was not ready in time.
    """
    from disagg_cluster.control.client import new_request
    from disagg_cluster.control.messages import RestartWorker

    verb = RestartWorker(worker, drain=not now, force=force)
    request = new_request(verb, wait=not no_wait, deadline_seconds=timeout_seconds)
    carry_out(daemon, request, as_json=as_json)
