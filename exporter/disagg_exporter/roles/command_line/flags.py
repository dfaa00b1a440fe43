"""The options of a command as its own parser reads them, and the KV configuration in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from disagg_exporter.roles.command_line.shell_words import unquoted

MAX_CONFIG_CHARS = 64 * 1024
MAX_NODES = 10_000

# Relevant keys of a configuration, in the order of `KvConfig`, with their valid values.
_WORDS: dict[str, frozenset[str] | None] = {
    "kv_role": frozenset({"kv_producer", "kv_consumer", "kv_both"}),
    "kv_connector": None,
    "ec_role": frozenset({"ec_producer", "ec_consumer", "ec_both"}),
}
# For a configuration that is not valid JSON: its quotes were removed by a shell, doubled by a
# template, or are Python's. Only the value of the key counts, not what surrounds it.
_LOOSE = re.compile(r"\b((?i:kv_role|ec_role)|kv_connector)(?=\W{1,12}([A-Za-z]\w{0,80}))")

# Connectors that only move KV between an engine and its own store, not to another engine.
STORE_CONNECTORS = frozenset({"offloadingconnector", "simplecpuoffloadconnector"})


class KvConfig(NamedTuple):
    """The roles and connectors named anywhere in a configuration, lower case."""

    roles: frozenset[str] = frozenset()
    connectors: frozenset[str] = frozenset()
    ec_roles: frozenset[str] = frozenset()

    @property
    def store_only(self) -> bool:
        """Whether no connector here can pass KV to another engine."""
        real = self.connectors - {"multiconnector"}
        return bool(real) and real <= STORE_CONNECTORS

    def union(self, other: KvConfig) -> KvConfig:
        """Return the union of both."""
        return KvConfig(*(mine | others for mine, others in zip(self, other, strict=True)))


def parse_kv_config(text: str) -> KvConfig:
    """Parse a configuration; if it is not valid JSON, search it for the keys."""
    text = text[:MAX_CONFIG_CHARS]
    for form in (text, text.strip().strip("'\""), text.replace('\\"', '"').strip().strip("'\"")):
        try:
            value = json.loads(form)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict | list):
            return _config(_pairs_in(value))
    return _config(_LOOSE.findall(text))


def dotted(path: str, value: str) -> KvConfig:
    """Parse one dotted key (`kv-role`, `kv-connector-extra-config.connectors+`) and its value."""
    key = path.rsplit(".", 1)[-1].rstrip("+").replace("-", "_").lower()
    return _config([(key, value.strip().strip("'\""))]) if key in _WORDS else parse_kv_config(value)


def _config(pairs: Iterable[tuple[str, str]]) -> KvConfig:
    """Return the configuration of key and value pairs, without those of unknown meaning."""
    found: dict[str, set[str]] = {key: set() for key in _WORDS}
    for key, text in pairs:
        key, word = key.lower(), text.strip().lower()
        known = _WORDS[key]
        if known is None or word in known:
            found[key].add(word)
    return KvConfig(*map(frozenset, found.values()))


def _pairs_in(value: object) -> Iterator[tuple[str, str]]:
    waiting, seen = [value], 0
    while waiting and seen < MAX_NODES:
        node, seen = waiting.pop(), seen + 1
        if isinstance(node, list):
            waiting.extend(node)
        for key, item in node.items() if isinstance(node, dict) else ():
            if not isinstance(item, str):
                waiting.append(item)
            elif key in _WORDS:
                yield key, item
            else:
                # A configuration inside a string, as templates nest them.
                nested = _LOOSE.findall(item[:MAX_CONFIG_CHARS])
                yield from (pair for pair in nested if pair[0].lower() == "kv_role")


CERTIFICATE_FILE = "ssl-certfile"
"""The option that makes vLLM and SGLang serve TLS, with this certificate."""

_SHORTEST = {
    CERTIFICATE_FILE: "ssl-certf",
    "kv-transfer-config": "kv-transfer",
    "ec-transfer-config": "ec-transfer",
    "disaggregation-mode": "disaggregation-m",
}


@dataclass(frozen=True, slots=True)
class Flags:
    """Options by name (`disaggregation-mode`: no dashes before, dashes inside) and their words.

    If an option is given twice, the last one counts, as in the engines' parsers.
    """

    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        """Return whether any of these options is present and not explicitly switched off."""
        return any(
            name in self.words and self.words[name][:1] not in (("false",), ("False",), ("0",))
            for name in names
        )

    def given(self, *names: str) -> bool:
        """Return whether any of these options is present, with any value."""
        return any(name in self.words for name in names)

    def value(self, *names: str) -> str | None:
        """Return the value of the first of these options that is present."""
        return next((self.words[name][0] for name in names if self.words.get(name)), None)

    def config(self, name: str) -> KvConfig | None:
        """Return a configuration given whole, by dotted keys or both; None if it is not given."""
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
            found = found.union(part)
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
    """Return a configuration that is one word, or that a shell has split at its spaces."""
    found = parse_kv_config(words[0]) if words else KvConfig()
    return found if found.roles or found.ec_roles else parse_kv_config(" ".join(words))


def _normal(head: str) -> str:
    name = head.strip().replace("_", "-")
    # The engines' parsers accept any unambiguous prefix of an option.
    for option, shortest in _SHORTEST.items():
        if option.startswith(name) and name.startswith(shortest):
            return option
    return name


def _is_number(token: str) -> bool:
    return token[1:].replace(".", "", 1).isdigit()
