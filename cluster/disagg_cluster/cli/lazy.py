"""A click group that imports a command only when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import click
from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class Row:
    """Where a command is (`package.module:name`) and its line in the help of its group."""

    target: str
    help: str


class LazyGroup(click.Group):
    """A group whose table says everything that its help and its completion show.

    Args:
        name: The group's own name.
        rows: Its commands by name.
        settings: Anything that `click.Group` takes.
    """

    def __init__(self, name: str, rows: Mapping[str, Row], **settings: object) -> None:
        super().__init__(name, **settings)  # type: ignore[arg-type] # passed through as it came
        self._rows = rows

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(self._rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself; this imports it."""
        row = self._rows.get(cmd_name)
        if row is None:
            return None
        module, _, attribute = row.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in self._rows.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What the shell offers when somebody has typed `incomplete`."""
        commands = [
            CompletionItem(name, help=row.help)
            for name, row in self._rows.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)
