"""`disagg-node config schema`: what an editor has to know of node files."""

from __future__ import annotations

import json

import click

from disagg_cluster.nodefile.schema import node_file_schema


@click.command
def schema() -> None:
    """Print the JSON schema of node files.

    Save it, and name it in the first line of a node file: editors with a YAML language server then
    complete its keys and mark what is wrong.

    \b
      disagg-node config schema > node-file.schema.json
      # yaml-language-server: $schema=node-file.schema.json
    """  # noqa: D301 # click looks for the character itself
    click.echo(json.dumps(node_file_schema(), indent=2))
