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
from disagg_exporter.roles.evidence.options import option_claims, silence_claims
from disagg_exporter.roles.evidence.types import Claim, Confidence, Source, stated

_ASSIGNMENT = re.compile(r"(?:--env=|-e=?)?([A-Z][A-Z0-9_]{0,79})=(.*)", re.S)
_EXPORTS = frozenset({"export", "declare", "typeset"})
_SETS = _EXPORTS | {"readonly", "local", "set", "then", "do", "else", "{"}


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command of a script: its words, the program among them, and variables.

    `known` are all that can stand in its words; `read` those in its environment that were set here,
    which the program itself may read.
    """

    tokens: list[str]
    found: FoundProgram
    known: Mapping[str, str] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Shell:
    """What was set in one shell so far, and what of it its children get."""

    known: dict[str, str]
    exported: set[str]

    def child(self) -> _Shell:
        return _Shell(dict(self.known), set(self.exported))


def scoped(commands: Iterable[list[str]], env: Mapping[str, str]) -> Iterator[ShellCommand]:
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


def _command(tokens: list[str], shell: _Shell, env: Mapping[str, str]) -> ShellCommand:
    found = find_program(tokens)
    ahead = tokens[: found.arguments_at or len(tokens)]
    here = {m[1]: m[2] for token in ahead if (m := _ASSIGNMENT.fullmatch(token))}
    if found.program is Program.UNKNOWN and _only_sets(tokens):
        shell.known.update(here)
        if _EXPORTS & set(tokens):
            # `export A` exports what was set before, too.
            shell.exported.update(here, (token for token in tokens if token in shell.known))
    exported = {name: value for name, value in shell.known.items() if name in shell.exported}
    return ShellCommand(tokens, found, {**env, **shell.known, **here}, {**exported, **here})


def _only_sets(tokens: Sequence[str]) -> bool:
    """Whether a command does nothing but set variables for those after it."""
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
    """A command line as far as roles go.

    `programs` are what it runs, `environments` those of its engines, each with what reads it and
    with what is set for it here (a shell's assignments, `env`, `docker run -e`), `claims` what its
    options say, `flags` the options of each engine. `part` is which part of an engine on several
    nodes it is; None for a whole one, and for a script that may start either.
    """

    programs: tuple[Program, ...] = ()
    environments: tuple[tuple[Program, Mapping[str, str]], ...] = ()
    claims: tuple[Claim, ...] = ()
    part: EnginePart | None = None
    flags: tuple[Flags, ...] = ()

    def option(self, name: str) -> str | None:
        """The value of an option that all its engines are given alike, empty for none."""
        values = {flags.value(name) or "" for flags in self.flags if flags.given(name)}
        return values.pop() if len(values) == 1 else None

    @property
    def has_engine(self) -> bool:
        """Whether one of the programs is an engine, by name and by its options."""
        named = any(program not in _BESIDE for program in self.programs)
        return named and not any(claim.says is None for claim in self.claims)


def parse_command_line(argv: Sequence[str], env: Mapping[str, str]) -> ParsedCommandLine:
    """Read a command line; `env` resolves the variables that hold more arguments."""
    parts = list(scoped(commands(argv), env)) or _arguments_only(env)
    programs = tuple(part.found.program for part in parts)
    engines = [part for part in parts if part.found.program not in _BESIDE]
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
        if not _open_ended(own, whole):
            said += tuple(silence_claims(found.program, flags, said))
        # Where nothing else is known, they are all that is values of the engine's own arguments.
        claims.extend(map(_perhaps, said) if more and tokens else said)
    spanning = spans.pop() if len(spans) == 1 else None
    environments = tuple((part.found.program, {**env, **part.read}) for part in read or parts)
    return ParsedCommandLine(programs, environments, tuple(claims), spanning, tuple(options))


_BESIDE = (Program.NOT_AN_ENGINE, Program.TOOL, Program.UNKNOWN)


def _arguments_only(env: Mapping[str, str]) -> list[ShellCommand]:
    """A process of which we know nothing but arguments in its environment."""
    given = any(name in env for name in ARGUMENT_NAMES)
    return [ShellCommand([], FoundProgram(Program.UNKNOWN), env)] if given else []


def _more_arguments(found: FoundProgram, env: Mapping[str, str]) -> list[str]:
    """Options in variables that an unknown program may read: an image's own start script.

    An engine reads none of them itself, and a script that does names them.
    """
    if found.program is not Program.UNKNOWN:
        return []
    names = (name for name in ARGUMENT_NAMES if name in env)
    return [argument for name in names for argument in split_arguments(env[name])]


def _perhaps(claim: Claim) -> Claim:
    """A claim of options that are there only if a program that we do not know takes them up."""
    sure = min(claim.confidence, Confidence.MEDIUM, key=lambda confidence: confidence.rank)
    return replace(claim, confidence=sure)


def _not_an_engine(parts: Sequence[ShellCommand]) -> Iterator[Claim]:
    for part in parts:
        tokens, found = part.tokens, part.found
        # Scripts of all kinds wait and fetch: a tool says something only where it is all there is.
        tool = found.program is Program.TOOL and len(parts) == 1
        if tool or found.program is Program.NOT_AN_ENGINE:
            yield stated(Source.PROGRAM, "program", found.word, None, Confidence.HIGH)
        elif _routes(read_flags(tokens)):
            yield stated(Source.PROGRAM, "options", "router's", None, Confidence.HIGH)


def _routes(flags: Flags) -> bool:
    """Whether these are options of a router: it is values where prefill and decode are."""
    if any(flags.has(name) for name in _ROUTER_OPTIONS):
        return True
    return all(_ADDRESS.match(flags.value(side) or "") for side in ("prefill", "decode"))


def _own_arguments(tokens: Sequence[str], found: FoundProgram, env: Mapping[str, str]) -> list[str]:
    own, room = list[str](), MAX_TOKEN_CHARS
    for token in tokens[found.arguments_at :]:
        words = _resolved(token, env) if room > 0 else [token]
        # What variables hold is short; one that is named a thousand times is no honest one.
        room -= sum(map(len, words)) if words != [token] else 0
        own.extend(words)
    return own


def _resolved(token: str, env: Mapping[str, str]) -> list[str]:
    """An argument; where it is one variable, what that holds, options of its own split."""
    found = _ONE_VARIABLE.fullmatch(token)
    if found is None:
        return [token]
    value = env.get(found["a"] or found["b"] or found["c"] or "", found["default"])
    if value is None:
        return [token]
    value = value[:MAX_TOKEN_CHARS]
    return split_arguments(value) if value.startswith("-") else [found["head"] + value]


def _open_ended(tokens: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a variable stands where whole options may be, so that absence means nothing."""
    return any(
        match[1] not in env
        for at, token in enumerate(tokens)
        if (match := _VARIABLE.match(token.strip("\"'")))
        # After an option it is that option's value.
        and not (at and tokens[at - 1].startswith("--"))
    )
