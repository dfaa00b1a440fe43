"""`disagg-node reassign`, `drain` and `explain`: which worker does which work, and why."""

from __future__ import annotations

import json

import click

from disagg_cluster.cli.control import (
    AskedDaemon,
    carry_out,
    exit_code,
    options,
    shown,
    worker_names,
)

_PATIENCE_SECONDS = 10.0

_SECONDS = click.FloatRange(min=0, min_open=True, max=86_400)


@click.command
@click.argument("worker", shell_complete=worker_names)
@click.option(
    "--role",
    type=click.Choice(["prefill", "decode"]),
    required=True,
    help="What its GPUs are to be for.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done, or why it would not.")
@click.option(
    "--deadline",
    "drain_seconds",
    type=_SECONDS,
    metavar="SECONDS",
    help="What its running requests may take to end; after that it stays as it was.  "
    "[default: drain_seconds of the node file]",
)
@click.option("--no-wait", is_flag=True, help="Do not wait until it is proven.")
@click.option(
    "--id",
    "request_id",
    metavar="ID",
    help="The request's own id: asked again by it, nothing is done twice.  [default: a new one]",
)
@options
def reassign(
    worker: str,
    role: str,
    dry_run: bool,
    drain_seconds: float | None,
    no_wait: bool,
    request_id: str | None,
    daemon: AskedDaemon,
    as_json: bool,
) -> None:
    """Give a worker's GPUs to the other phase: decode in place of prefill, or the reverse.

    The router sends it nothing new, its requests end, it starts in its new role and gets requests
    again. It is done only when that phase has used GPU time there; what does not come up, or shows
    no effect, is taken back. Exits with 0 when it is proven, 1 if it was taken back, 3 if it was
    refused, 4 if no daemon answers, 5 if it took too long and goes on.
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
    help="Wait no longer; it gets no new requests all the same.",
)
@options
def drain(
    worker: str,
    no_wait: bool,
    timeout_seconds: float | None,
    daemon: AskedDaemon,
    as_json: bool,
) -> None:
    """Send a worker no new requests, and wait until it has none left; it goes on to run.

    It stays so, also under the next daemon, until `disagg-node resume`. It needs a router of this
    node with `membership: live`.
    """
    from disagg_cluster.control.client import new_request
    from disagg_cluster.control.messages import DrainWorker

    request = new_request(DrainWorker(worker), wait=not no_wait, deadline_seconds=timeout_seconds)
    carry_out(daemon, request, as_json=as_json)


@click.command
@click.argument("worker", shell_complete=worker_names)
@options
def explain(worker: str, daemon: AskedDaemon, as_json: bool) -> None:
    """Say why a worker is in its state: since when, by whose wish, and what is waited for."""
    from disagg_cluster.control.client import new_request
    from disagg_cluster.control.messages import ExplainWorker

    *_, reply = daemon.ask(new_request(ExplainWorker(worker)), _PATIENCE_SECONDS)
    if as_json:
        click.echo(json.dumps(shown(reply)))
    elif reply.explanation:
        click.echo("\n".join(reply.explanation))
    else:
        way_out = f"\n    {reply.way_out}" if reply.way_out else ""
        told = "; ".join(filter(None, (reply.text, *reply.problems)))
        click.echo(f"disagg-node: {reply.outcome}: {told}{way_out}", err=True)
    if code := exit_code(reply.outcome):
        raise click.exceptions.Exit(code)
