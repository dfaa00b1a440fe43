"""`disagg-node reassign`, `drain` and `explain`: workers' work, and the reasons for their state."""

from __future__ import annotations

import json

import click

from disagg_cluster.cli.control import (
    DaemonClient,
    carry_out,
    exit_code,
    options,
    reply_value,
    worker_names,
)
from disagg_cluster.cli.number_range import NumberRange

_PATIENCE_SECONDS = 10.0

_SECONDS = NumberRange(min=0, min_open=True, max=86_400)


@click.command
@click.argument("worker", shell_complete=worker_names)
@click.option(
    "--role",
    type=click.Choice(["prefill", "decode"]),
    required=True,
    help="The new role of its GPUs.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done, or why not.")
@click.option(
    "--deadline",
    "drain_seconds",
    type=_SECONDS,
    metavar="SECONDS",
    help="Time limit for its running requests to end; after it the worker keeps its role.  "
    "[default: drain_seconds of the node file]",
)
@click.option("--no-wait", is_flag=True, help="Do not wait until the move is proven.")
@click.option(
    "--id",
    "request_id",
    metavar="ID",
    help="The request's id: repeating it does nothing twice.  [default: a new one]",
)
@options
def reassign(
    worker: str,
    role: str,
    dry_run: bool,
    drain_seconds: float | None,
    no_wait: bool,
    request_id: str | None,
    daemon: DaemonClient,
    as_json: bool,
) -> None:
    """Move a worker's GPUs to the other phase: from prefill to decode, or the reverse.

    The router stops sending it requests, its running ones end, it starts in its new role and gets
    requests again. The move is done once that phase has used GPU time there; a worker that does not
    come up, or shows no effect, is moved back. Exits with 0 when it is proven, 1 if it was moved
    back, 3 if it was refused, 4 if no daemon answers, 5 if it took too long and goes on.
    """
    from disagg_cluster.control.client import new_request
    from disagg_cluster.control.messages import ReassignWorker
    from disagg_exporter.model import Role

    verb = ReassignWorker(worker, Role(role), dry_run, drain_seconds)
    request = new_request(verb, wait=not no_wait, request_id=request_id)
    carry_out(daemon, request, as_json=as_json)


@click.command
@click.argument("worker", shell_complete=worker_names)
@click.option("--no-wait", is_flag=True, help="Do not wait until its requests have ended.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=_SECONDS,
    metavar="SECONDS",
    help="Stop waiting after this time; the drain goes on.",
)
@options
def drain(
    worker: str,
    no_wait: bool,
    timeout_seconds: float | None,
    daemon: DaemonClient,
    as_json: bool,
) -> None:
    """Send a worker no new requests, and wait until it has none left; it keeps running.

    It stays drained, also under the next daemon, until `disagg-node resume`. Needs a router on this
    node with `membership: live`.
    """
    from disagg_cluster.control.client import new_request
    from disagg_cluster.control.messages import DrainWorker

    request = new_request(DrainWorker(worker), wait=not no_wait, deadline_seconds=timeout_seconds)
    carry_out(daemon, request, as_json=as_json)


@click.command
@click.argument("worker", shell_complete=worker_names)
@options
def explain(worker: str, daemon: DaemonClient, as_json: bool) -> None:
    """Explain why a worker is in its state: since when, at whose request, and what it waits for."""
    from disagg_cluster.control.client import new_request
    from disagg_cluster.control.messages import ExplainWorker

    *_, reply = daemon.ask(new_request(ExplainWorker(worker)), _PATIENCE_SECONDS)
    if as_json:
        click.echo(json.dumps(reply_value(reply)))
    elif reply.explanation:
        click.echo("\n".join(reply.explanation))
    else:
        way_out = f"\n    {reply.way_out}" if reply.way_out else ""
        text = "; ".join(filter(None, (reply.text, *reply.problems)))
        click.echo(f"disagg-node: {reply.outcome}: {text}{way_out}", err=True)
    if code := exit_code(reply.outcome):
        raise click.exceptions.Exit(code)
