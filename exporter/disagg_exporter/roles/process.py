"""What a command line says of the role of the engine that it starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from disagg_exporter.roles.claims import Claim, Source, stated
from disagg_exporter.roles.environment import ARGUMENT_NAMES
from disagg_exporter.roles.flags import Flags, read_flags
from disagg_exporter.roles.nouns import Confidence
from disagg_exporter.roles.options import option_claims
from disagg_exporter.roles.programs import Found, Program, find_program
from disagg_exporter.roles.shellwords import MAX_TOKEN_CHARS, commands, split_arguments
from disagg_exporter.roles.silence import silence_claims
from disagg_exporter.roles.spanning import Part, part_of

_ASSIGNMENT = re.compile(r"(?:--env=|-e=?)?([A-Z][A-Z0-9_]{0,79})=(.*)", re.S)
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
class Process:
    """A command line as far as roles go.

    `programs` are what it runs, `env` what it sets in its own environment (a shell's
    assignments, `env`, `docker run -e`), `claims` what its options say, `flags` the options of each
    engine. `part` is which part of an
    engine on several nodes it is; None for a whole one, and for a script that may start either.
    """

    programs: tuple[Program, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    part: Part | None = None
    flags: tuple[Flags, ...] = ()

    def option(self, name: str) -> str | None:
        """The value of an option that all its engines are given alike, empty for none."""
        told = {flags.value(name) or "" for flags in self.flags if flags.given(name)}
        return told.pop() if len(told) == 1 else None

    @property
    def has_engine(self) -> bool:
        """Whether one of the programs is an engine, by name and by its options."""
        named = any(program not in _BESIDE for program in self.programs)
        return named and not any(claim.says is None for claim in self.claims)


def read_process(argv: Sequence[str], env: Mapping[str, str]) -> Process:
    """Read a command line; `env` resolves the variables that hold more arguments."""
    parts = [(tokens, find_program(tokens)) for tokens in commands(argv)] or _arguments_only(env)
    set_here = {
        match[1]: match[2]
        for tokens, found in parts
        for token in tokens[: found.arguments_at or len(tokens)]
        if (match := _ASSIGNMENT.fullmatch(token))
    }
    whole = {**env, **set_here}
    programs = tuple(found.program for _, found in parts)
    more = [
        argument
        for name in ARGUMENT_NAMES
        if name in whole
        for argument in split_arguments(whole[name])
    ]
    engines = [part for part in parts if part[1].program not in _BESIDE]
    claims: list[Claim] = []
    spans: set[Part | None] = set()
    options: list[Flags] = []
    if not engines:
        claims.extend(_not_an_engine(parts))
    for tokens, found in engines[:MAX_ENGINES] or [part for part in parts if not claims]:
        own = _own_arguments(tokens, found, whole)
        flags = read_flags([*own, *more])
        options.append(flags)
        spans.add(part_of(found.program, own, flags, whole))
        claims.extend(_command_claims(tokens, found, flags, open_ended=_open_ended(own, whole)))
    part = spans.pop() if len(spans) == 1 else None
    return Process(programs, set_here, tuple(claims), part, tuple(options))


_BESIDE = (Program.NOT_AN_ENGINE, Program.TOOL, Program.UNKNOWN)
_Part = tuple[list[str], Found]


def _arguments_only(env: Mapping[str, str]) -> list[_Part]:
    """A process of which we know nothing but arguments in its environment."""
    return [([], Found(Program.UNKNOWN))] if any(name in env for name in ARGUMENT_NAMES) else []


def _not_an_engine(parts: Sequence[_Part]) -> Iterator[Claim]:
    for tokens, found in parts:
        # Scripts of all kinds wait and fetch: a tool says something only where it is all there is.
        tool = found.program is Program.TOOL and len(parts) == 1
        if tool or found.program is Program.NOT_AN_ENGINE:
            yield stated(Source.PROGRAM, "program", found.word, None, Confidence.HIGH)
        elif _routes(read_flags(tokens)):
            yield stated(Source.PROGRAM, "options", "router's", None, Confidence.HIGH)


def _routes(flags: Flags) -> bool:
    """Whether these are options of a router: it is told where prefill and decode are."""
    if any(flags.has(name) for name in _ROUTER_OPTIONS):
        return True
    return all(_ADDRESS.match(flags.value(side) or "") for side in ("prefill", "decode"))


def _own_arguments(tokens: Sequence[str], found: Found, env: Mapping[str, str]) -> list[str]:
    own, room = list[str](), MAX_TOKEN_CHARS
    for token in tokens[found.arguments_at :]:
        words = _resolved(token, env) if room > 0 else [token]
        # What variables hold is short; one that is named a thousand times is no honest one.
        room -= sum(map(len, words)) if words != [token] else 0
        own.extend(words)
    return own


def _command_claims(
    tokens: Sequence[str], found: Found, flags: Flags, *, open_ended: bool
) -> Iterator[Claim]:
    title = tokens[0] if tokens else ""
    said = list(option_claims(found, flags, title))
    yield from said
    if not open_ended:
        yield from silence_claims(found.program, flags, said)


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
