"""`disagg-node init`: the first process of a container."""

from __future__ import annotations

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def init(command: tuple[str, ...]) -> None:
    """Run COMMAND, and again when it crashes; for the first process of a container.

    Passes signals on, buries what others leave, and ends with COMMAND's exit code when it ends as
    planned: with 0, with 2 (bad input), or after it was asked to. Engines outlive a crash of
    COMMAND and are adopted by its next start.

    Example: disagg-node init -- disagg-node start -c /etc/disagg-node/node.yaml
    """
    from disagg_cluster.host.daemon_output import queued_output
    from disagg_cluster.supervisor import init as first_process

    def say(text: str) -> None:
        click.echo(f"init: {text}", err=True)

    click.get_current_context().find_root().with_resource(queued_output())
    raise click.exceptions.Exit(first_process.run(command, say))
