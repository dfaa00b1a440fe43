"""Role claims of the command line that starts an engine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from disagg_exporter.roles.command_line.flags import Flags, read_flags
from disagg_exporter.roles.command_line.programs import FoundProgram, Program, find_program
from disagg_exporter.roles.command_line.shell_words import (
    CLOSE,
    MAX_TOKEN_CHARS,
    OPEN,
    commands,
    split_arguments,
)
from disagg_exporter.roles.command_line.spanning import EnginePart, part_of
from disagg_exporter.roles.evidence.environment import ARGUMENT_NAMES
from disagg_exporter.roles.evidence.options import default_claims, option_claims
from disagg_exporter.roles.evidence.types import Claim, Confidence, Source, stated

_ASSIGNMENT = re.compile(r"(?:--env=|-e=?)?([A-Z][A-Z0-9_]{0,79})=(.*)", re.S)
_EXPORTS = frozenset({"export", "declare", "typeset"})
_SETS = _EXPORTS | {"readonly", "local", "set", "then", "do", "else", "{"}


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command of a script: its words, the program among them, and variables.

    `known` are all variables that its words may use; `read` are those set here that are in the
    program's own environment, which the program itself may read.
    """

    tokens: list[str]
    found: FoundProgram
    known: Mapping[str, str] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Shell:
    """Variables set so far in one shell, and which of them its children inherit."""

    known: dict[str, str]
    exported: set[str]

    def child(self) -> _Shell:
        return _Shell(dict(self.known), set(self.exported))


def scoped(commands: Iterable[list[str]], env: Mapping[str, str]) -> Iterator[ShellCommand]:
    """Walk through commands as a shell does that starts with an environment."""
    shells = [_Shell({}, set(env))]
    for tokens in commands:
        if tokens == [OPEN]:
            shells.append(shells[-1].child())
        elif tokens == [CLOSE]:
            if len(shells) > 1:
                shells.pop()
        else:
            yield _command(tokens, shells[-1], env)


def _command(tokens: list[str], shell: _Shell, env: Mapping[str, str]) -> ShellCommand:
    found = find_program(tokens)
    ahead = tokens[: found.arguments_at or len(tokens)]
    here = {m[1]: m[2] for token in ahead if (m := _ASSIGNMENT.fullmatch(token))}
    if found.program is Program.UNKNOWN and _only_assigns(tokens):
        shell.known.update(here)
        if _EXPORTS & set(tokens):
            # `export A` also exports earlier assignments.
            shell.exported.update(here, (token for token in tokens if token in shell.known))
    exported = {name: value for name, value in shell.known.items() if name in shell.exported}
    return ShellCommand(tokens, found, {**env, **shell.known, **here}, {**exported, **here})


def _only_assigns(tokens: Sequence[str]) -> bool:
    """Return whether a command does nothing but set variables for later ones."""
    return all(
        token in _SETS or token.startswith("-") or re.match(r"[A-Za-z_]\w*(=|$)", token)
        for token in tokens
    ) and any(token in _EXPORTS or "=" in token for token in tokens)


MAX_ENGINES = 32
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*|[@*0-9])")
_ONE_VARIABLE = re.compile(
    r"(?P<head>--[\w.-]+=|)[\"']?\$(?:\{(?P<a>\w+)(?::?-(?P<default>[^}$]*))?\}"
    r"|\((?P<b>\w+)\)|(?P<c>\w+))[\"']?"
)
_ADDRESS = re.compile(r"(https?|grpc)://|[\w.-]+:\d+$")
_ROUTER_OPTIONS = (
    *("pd-disaggregation", "vllm-pd-disaggregation", "prefill-selector", "decode-selector"),
    *("prefiller-hosts", "prefiller-host", "decoder-hosts", "decoder-host", "prefill-model-labels"),
    *("decode-model-labels", "vllm-port", "static-backends", "worker-urls", "engine-base-url"),
    *("prefill-servers-urls", "decode-servers-urls", "pool-name"),
)


@dataclass(frozen=True, slots=True)
class ParsedCommandLine:
    """A command line as far as it matters for roles.

    `programs` are what it runs. `environments` are those of its engines, each with the program that
    reads it and with what is set for it here (a shell's assignments, `env`, `docker run -e`).
    `claims` are the claims of its options, `flags` the options of each engine. `part` is which part
    of an engine on several nodes it is; None for a whole one, and for a script that may start
    either.
    """

    programs: tuple[Program, ...] = ()
    environments: tuple[tuple[Program, Mapping[str, str]], ...] = ()
    claims: tuple[Claim, ...] = ()
    part: EnginePart | None = None
    flags: tuple[Flags, ...] = ()

    def option(self, name: str) -> str | None:
        """Return the value of an option that all its engines share, empty for none."""
        values = {flags.value(name) or "" for flags in self.flags if flags.given(name)}
        return values.pop() if len(values) == 1 else None

    @property
    def has_engine(self) -> bool:
        """Whether one of the programs is an engine, by name and by its options."""
        named = any(program not in _NON_ENGINES for program in self.programs)
        return named and not any(claim.says is None for claim in self.claims)


def parse_command_line(argv: Sequence[str], env: Mapping[str, str]) -> ParsedCommandLine:
    """Parse a command line; `env` resolves the variables that hold more arguments."""
    parts = list(scoped(commands(argv), env)) or _arguments_only(env)
    programs = tuple(part.found.program for part in parts)
    engines = [part for part in parts if part.found.program not in _NON_ENGINES]
    claims: list[Claim] = []
    spans: set[EnginePart | None] = set()
    options: list[Flags] = []
    if not engines:
        claims.extend(_not_an_engine(parts))
    read = engines[:MAX_ENGINES] or [part for part in parts if not claims]
    for part in read:
        tokens, found, whole = part.tokens, part.found, part.known
        own = _own_arguments(tokens, found, whole)
        more = _more_arguments(found, whole)
        flags = read_flags([*own, *more])
        options.append(flags)
        spans.add(part_of(found.program, own, flags, whole))
        said = tuple(option_claims(found, flags, tokens[0] if tokens else ""))
        if not _may_hold_options(own, whole):
            said += tuple(default_claims(found.program, flags, said))
        # If nothing else is known, they are all that is known of the engine's own arguments.
        claims.extend(map(_uncertain, said) if more and tokens else said)
    spanning = spans.pop() if len(spans) == 1 else None
    environments = tuple((part.found.program, {**env, **part.read}) for part in read or parts)
    return ParsedCommandLine(programs, environments, tuple(claims), spanning, tuple(options))


_NON_ENGINES = (Program.NOT_AN_ENGINE, Program.TOOL, Program.UNKNOWN)


def _arguments_only(env: Mapping[str, str]) -> list[ShellCommand]:
    """Return a command for a process of which only arguments in its environment are known."""
    given = any(name in env for name in ARGUMENT_NAMES)
    return [ShellCommand([], FoundProgram(Program.UNKNOWN), env)] if given else []


def _more_arguments(found: FoundProgram, env: Mapping[str, str]) -> list[str]:
    """Return options in variables that an unknown program, such as an image's script, may read.

    An engine reads none of them itself, and a script that does names them.
    """
    if found.program is not Program.UNKNOWN:
        return []
    names = (name for name in ARGUMENT_NAMES if name in env)
    return [argument for name in names for argument in split_arguments(env[name])]


def _uncertain(claim: Claim) -> Claim:
    """Lower the confidence of a claim that holds only if an unknown program uses these options."""
    sure = min(claim.confidence, Confidence.MEDIUM, key=lambda confidence: confidence.rank)
    return replace(claim, confidence=sure)


def _not_an_engine(parts: Sequence[ShellCommand]) -> Iterator[Claim]:
    for part in parts:
        tokens, found = part.tokens, part.found
        # Scripts often wait and fetch: a tool is evidence only if it is the whole command.
        tool = found.program is Program.TOOL and len(parts) == 1
        if tool or found.program is Program.NOT_AN_ENGINE:
            yield stated(Source.PROGRAM, "program", found.word, None, Confidence.HIGH)
        elif _routes(read_flags(tokens)):
            yield stated(Source.PROGRAM, "options", "router's", None, Confidence.HIGH)


def _routes(flags: Flags) -> bool:
    """Return whether these are a router's options: prefill and decode are among their values."""
    if any(flags.has(name) for name in _ROUTER_OPTIONS):
        return True
    return all(_ADDRESS.match(flags.value(side) or "") for side in ("prefill", "decode"))


def _own_arguments(tokens: Sequence[str], found: FoundProgram, env: Mapping[str, str]) -> list[str]:
    own, room = list[str](), MAX_TOKEN_CHARS
    for token in tokens[found.arguments_at :]:
        words = _resolved(token, env) if room > 0 else [token]
        # Variables hold short texts; one used a thousand times is an attack.
        room -= sum(map(len, words)) if words != [token] else 0
        own.extend(words)
    return own


def _resolved(token: str, env: Mapping[str, str]) -> list[str]:
    """Return an argument; if it is one variable, its value, split if it contains options."""
    found = _ONE_VARIABLE.fullmatch(token)
    if found is None:
        return [token]
    value = env.get(found["a"] or found["b"] or found["c"] or "", found["default"])
    if value is None:
        return [token]
    value = value[:MAX_TOKEN_CHARS]
    return split_arguments(value) if value.startswith("-") else [found["head"] + value]


def _may_hold_options(tokens: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether a variable may hold whole options, so that absence of one means nothing."""
    return any(
        match[1] not in env
        for at, token in enumerate(tokens)
        if (match := _VARIABLE.match(token.strip("\"'")))
        # After an option it is that option's value.
        and not (at and tokens[at - 1].startswith("--"))
    )
