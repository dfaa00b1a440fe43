"""The options of one command, looked up as its own parser would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from disagg_exporter.roles.command_line.kv_config import KvConfig, dotted, parse_kv_config
from disagg_exporter.roles.command_line.shell_words import unquoted

CERTIFICATE_FILE = "ssl-certfile"
"""The option by which vLLM and SGLang are told to serve TLS, and with which certificate."""

_SHORTEST = {
    CERTIFICATE_FILE: "ssl-certf",
    "kv-transfer-config": "kv-transfer",
    "ec-transfer-config": "ec-transfer",
    "disaggregation-mode": "disaggregation-m",
}


@dataclass(frozen=True, slots=True)
class Flags:
    """Options by name (`disaggregation-mode`: no dashes before, dashes inside) and their words.

    Of an option given twice the last counts, as engines' parsers have it.
    """

    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        """Whether any of these options is there, unless it is switched off in so many words."""
        return any(
            name in self.words and self.words[name][:1] not in (("false",), ("False",), ("0",))
            for name in names
        )

    def given(self, *names: str) -> bool:
        """Whether any of these options is there, whatever its value."""
        return any(name in self.words for name in names)

    def value(self, *names: str) -> str | None:
        """The value of the first of these options that is there."""
        return next(
            (self.words[name][0] for name in names if self.words.get(name)),
            None,
        )

    def config(self, name: str) -> KvConfig | None:
        """A configuration given whole, by dotted keys or both; None if it is not given."""
        whole = [_whole(self.words[name])] if name in self.words else []
        keys = [
            dotted(key, " ".join(words))
            for key, words in self.words.items()
            if key.startswith(name + ".")
        ]
        if not whole and not keys:
            return None
        found = KvConfig()
        # vLLM makes one document of the dotted keys and puts it last: it replaces the other.
        for part in keys or whole:
            found = found.with_other(part)
        return found


def read_flags(tokens: Sequence[str]) -> Flags:
    """Collect the options among a command's arguments."""
    found: dict[str, tuple[str, ...]] = {}
    name, words = "", list[str]()
    for token in (*tokens, "--"):
        if token.startswith("-") and not _is_number(token):
            if name:
                found.pop(name, None)
                found[name] = tuple(words)
            head, equals, value = token.lstrip("-").partition("=")
            name, words = _normal(head), [unquoted(value)] if equals else []
        elif name:
            words.append(unquoted(token))
    return Flags(found)


def _whole(words: tuple[str, ...]) -> KvConfig:
    """A configuration that is one word, or that a shell has torn at its spaces."""
    found = parse_kv_config(words[0]) if words else KvConfig()
    return found if found.roles or found.ec_roles else parse_kv_config(" ".join(words))


def _normal(head: str) -> str:
    name = head.strip().replace("_", "-")
    # The engines' parsers take any beginning of an option that is nobody else's.
    for option, shortest in _SHORTEST.items():
        if option.startswith(name) and name.startswith(shortest):
            return option
    return name


def _is_number(token: str) -> bool:
    return token[1:].replace(".", "", 1).isdigit()
