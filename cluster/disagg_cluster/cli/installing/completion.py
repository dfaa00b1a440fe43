"""`disagg-node completion`: the completion script of a shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

_INSTALL_SCRIPT = {
    "bash": "disagg-node completion bash > ~/.local/share/bash-completion/completions/disagg-node",
    "zsh": "disagg-node completion zsh > ~/.zfunc/_disagg-node  "
    "(with fpath+=~/.zfunc before compinit in ~/.zshrc)",
    "fish": "disagg-node completion fish > ~/.config/fish/completions/disagg-node.fish",
}


@click.command
@click.argument("shell", type=click.Choice(list(_INSTALL_SCRIPT)), required=False)
@click.pass_context
def completion(ctx: click.Context, shell: str | None) -> None:
    """Print the completion script of a shell.

    SHELL defaults to your login shell.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell)
    if kind is None or shell not in _INSTALL_SCRIPT:
        raise click.UsageError(f"say for which shell: {', '.join(_INSTALL_SCRIPT)}")
    root = ctx.find_root().command
    script = kind(root, {}, "disagg-node", "_DISAGG_NODE_COMPLETE").source()
    head, _, rest = script.strip().partition("\n")
    comment = f"# To install: {_INSTALL_SCRIPT[shell]}"
    # zsh expects #compdef in the first line.
    lines = [head, comment, rest] if head.startswith("#") else [comment, head, rest]
    click.echo("\n".join(lines))
