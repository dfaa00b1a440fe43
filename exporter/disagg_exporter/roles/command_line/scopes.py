"""Which variables each command of a script sees: its own, and those set before it in its shell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from disagg_exporter.roles.command_line.programs import Found, Program, find_program
from disagg_exporter.roles.command_line.shell_words import CLOSE, OPEN

_ASSIGNMENT = re.compile(r"(?:--env=|-e=?)?([A-Z][A-Z0-9_]{0,79})=(.*)", re.S)
_EXPORTS = frozenset({"export", "declare", "typeset"})
_SETS = _EXPORTS | {"readonly", "local", "set", "then", "do", "else", "{"}


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a script: its words, the program among them, and variables.

    `known` are all that can stand in its words; `read` those in its environment that were set here,
    which the program itself may read.
    """

    tokens: list[str]
    found: Found
    known: Mapping[str, str] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Shell:
    """What was set in one shell so far, and what of it its children get."""

    known: dict[str, str]
    exported: set[str]

    def child(self) -> _Shell:
        return _Shell(dict(self.known), set(self.exported))


def scoped(commands: Iterable[list[str]], env: Mapping[str, str]) -> Iterator[Command]:
    """Go through commands as a shell does that begins with an environment."""
    shells = [_Shell({}, set(env))]
    for tokens in commands:
        if tokens == [OPEN]:
            shells.append(shells[-1].child())
        elif tokens == [CLOSE]:
            if len(shells) > 1:
                shells.pop()
        else:
            yield _command(tokens, shells[-1], env)


def _command(tokens: list[str], shell: _Shell, env: Mapping[str, str]) -> Command:
    found = find_program(tokens)
    ahead = tokens[: found.arguments_at or len(tokens)]
    here = {m[1]: m[2] for token in ahead if (m := _ASSIGNMENT.fullmatch(token))}
    if found.program is Program.UNKNOWN and _only_sets(tokens):
        shell.known.update(here)
        if _EXPORTS & set(tokens):
            # `export A` exports what was set before, too.
            shell.exported.update(here, (token for token in tokens if token in shell.known))
    exported = {name: value for name, value in shell.known.items() if name in shell.exported}
    return Command(tokens, found, {**env, **shell.known, **here}, {**exported, **here})


def _only_sets(tokens: Sequence[str]) -> bool:
    """Whether a command does nothing but set variables for those after it."""
    return all(
        token in _SETS or token.startswith("-") or re.match(r"[A-Za-z_]\w*(=|$)", token)
        for token in tokens
    ) and any(token in _EXPORTS or "=" in token for token in tokens)
