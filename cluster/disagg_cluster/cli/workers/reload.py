"""`disagg-node reload`: applies a changed node file without a new daemon."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.control import DaemonClient, exit_code, options, reply_value

if TYPE_CHECKING:
    from disagg_cluster.control.messages import ControlReply

_WRONG_NODE_FILE = 2


@click.command
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--yes", is_flag=True, help="Apply without asking.")
@click.option("--force", is_flag=True, help="Also if a model loses all that serves one role.")
@options
def reload(dry_run: bool, yes: bool, force: bool, daemon: DaemonClient, as_json: bool) -> None:
    """Have the daemon read its node file again; shows the changes before they are applied.

    Changed start settings of a worker (python, args, role_args, env, deadlines, health, restart,
    limits) take effect at its next start: use `disagg-node restart WORKER`. New workers are
    started; those no longer in the file are drained and stopped; all others are untouched. GPUs,
    ports, models and roles of a worker, and everything besides the workers, wait for the next
    daemon: `disagg-node status` shows these. Without a terminal to ask on, --yes is needed. Exits
    with 2 if the file has problems; with 3 if it has changed since it was shown, another change is
    under way, or a model that stays would lose the only worker that serves it in a role. Then
    nothing was changed.
    """
    from disagg_cluster.control.client import new_request
    from disagg_cluster.control.messages import ENDS, STARTS, WAITS, ReplyOutcome, RereadNodeFile

    *_, looked = daemon.ask(new_request(RereadNodeFile(dry_run=True, force=force)))
    if not as_json:
        for line in looked.explanation:
            click.echo(line)
    endings = tuple(f"({what})" for what in (STARTS, ENDS, WAITS))
    takes = any(not line.endswith(f"({WAITS})") for line in looked.explanation)
    later = any(not line.endswith(endings) for line in looked.explanation)
    if dry_run or not takes or looked.outcome is not ReplyOutcome.DONE:
        reply = looked
    else:
        if not yes and not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask on: --yes applies the changes")
        if not yes:
            click.confirm("Apply these changes?", abort=True, err=True)
        # Apply only what was shown, no later edits; an older daemon knows no digest.
        verb = RereadNodeFile(digest=looked.digest or None, force=force)
        *_, reply = daemon.ask(new_request(verb))
    if as_json:
        click.echo(json.dumps(reply_value(reply)))
    else:
        done = reply.outcome is ReplyOutcome.DONE
        text = reply.text if done else f"disagg-node: {reply.outcome}: {reply.text}"
        click.echo("\n    ".join((text, *reply.problems)), err=not done)
        if later and done and not dry_run:
            click.echo("a change from its next start on: disagg-node restart WORKER", err=True)
        if reply.way_out:
            click.echo(reply.way_out if done else f"    {reply.way_out}", err=True)
    if code := _exit_code(reply):
        raise click.exceptions.Exit(code)


def _exit_code(reply: ControlReply) -> int:
    from disagg_cluster.control.refusal import RefusalReason

    wrong_file = reply.reason == RefusalReason.WRONG_NODE_FILE
    return _WRONG_NODE_FILE if wrong_file else exit_code(reply.outcome)
