"""`disagg-node reload`: take in a changed node file without a new daemon."""

from __future__ import annotations

import json
import sys

import click

from disagg_cluster.cli.control import AskedDaemon, exit_code, options, shown


@click.command
@click.option("--dry-run", is_flag=True, help="Only show what is otherwise.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options
def reload(dry_run: bool, yes: bool, daemon: AskedDaemon, as_json: bool) -> None:
    """Have the daemon read its node file again, and show what is otherwise before that is taken in.

    How a worker is started (python, args, role_args, env, deadlines, health, restart, limits) holds
    from its next start on: `disagg-node restart WORKER` is that. New workers are started; those
    that are no longer in the file are drained and stopped; all others are untouched. GPUs, ports,
    models and roles of a worker, and everything beside the workers, wait for the next daemon.
    Without a terminal to ask on, --yes is needed.
    """
    from disagg_cluster.control.client import new_request
    from disagg_cluster.control.messages import ENDS, STARTS, WAITS, ReplyOutcome, RereadNodeFile

    *_, looked = daemon.ask(new_request(RereadNodeFile(dry_run=True)))
    if not as_json:
        for line in looked.explanation:
            click.echo(line)
    told = tuple(f"({what})" for what in (STARTS, ENDS, WAITS))
    takes = any(not line.endswith(f"({WAITS})") for line in looked.explanation)
    later = any(not line.endswith(told) for line in looked.explanation)
    if dry_run or not takes or looked.outcome is not ReplyOutcome.DONE:
        reply = looked
    else:
        if not yes and not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here: --yes takes it in")
        if not yes:
            click.confirm("Take this in?", abort=True, err=True)
        *_, reply = daemon.ask(new_request(RereadNodeFile()))
    if as_json:
        click.echo(json.dumps(shown(reply)))
    else:
        failed = reply.outcome is not ReplyOutcome.DONE
        text = "\n    ".join((reply.text, *reply.problems))
        click.echo(f"disagg-node: {text}" if failed else text, err=failed)
        if later and not failed and not dry_run:
            click.echo("a change from its next start on: disagg-node restart WORKER", err=True)
    if code := exit_code(reply.outcome):
        raise click.exceptions.Exit(code)
