"""The options of a command as its own parser reads them, and the KV configuration in them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from disagg_exporter.roles.command_line.shell_words import unquoted

MAX_CONFIG_CHARS = 64 * 1024
MAX_NODES = 10_000

# What is left of a configuration that no JSON parser takes: quotes eaten by a shell, doubled by
# a template, or Python's. Only the value of the key counts, whatever stands around it.
_LOOSE_ROLE = re.compile(r"\bkv_role\W{1,12}(kv_producer|kv_consumer|kv_both)\b", re.I)
_LOOSE_CONNECTOR = re.compile(r"\bkv_connector\W{1,12}([A-Za-z]\w{0,80})")
_LOOSE_EC_ROLE = re.compile(r"\bec_role\W{1,12}(ec_producer|ec_consumer|ec_both)\b", re.I)
_KV_ROLES = frozenset({"kv_producer", "kv_consumer", "kv_both"})
_EC_ROLES = frozenset({"ec_producer", "ec_consumer", "ec_both"})

# Connectors that only move KV between an engine and a store of its own: no engine behind them.
STORE_CONNECTORS = frozenset({"offloadingconnector", "simplecpuoffloadconnector"})


@dataclass(frozen=True, slots=True)
class KvConfig:
    """The roles and connectors named anywhere in a configuration, lower case."""

    roles: frozenset[str] = frozenset()
    connectors: frozenset[str] = frozenset()
    ec_roles: frozenset[str] = frozenset()

    @property
    def store_only(self) -> bool:
        """Whether no connector here can hand KV to another engine."""
        real = self.connectors - {"multiconnector"}
        return bool(real) and real <= STORE_CONNECTORS

    def with_other(self, other: KvConfig) -> KvConfig:
        """Both together."""
        return KvConfig(
            self.roles | other.roles,
            self.connectors | other.connectors,
            self.ec_roles | other.ec_roles,
        )


def parse_kv_config(text: str) -> KvConfig:
    """Read a configuration; what cannot be read as JSON is searched for its keys."""
    text = text[:MAX_CONFIG_CHARS]
    for form in (text, text.strip().strip("'\""), text.replace('\\"', '"').strip().strip("'\"")):
        try:
            value = json.loads(form)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict | list):
            return _from_value(value)
    return KvConfig(
        frozenset(role.lower() for role in _LOOSE_ROLE.findall(text)),
        frozenset(name.lower() for name in _LOOSE_CONNECTOR.findall(text)),
        frozenset(role.lower() for role in _LOOSE_EC_ROLE.findall(text)),
    )


def dotted(path: str, value: str) -> KvConfig:
    """Read one dotted key (`kv-role`, `kv-connector-extra-config.connectors+`) and its value."""
    key = path.rsplit(".", 1)[-1].rstrip("+").replace("-", "_").lower()
    word = value.strip().strip("'\"").lower()
    if key == "kv_role":
        return KvConfig(roles=frozenset({word} & _KV_ROLES))
    if key == "ec_role":
        return KvConfig(ec_roles=frozenset({word} & _EC_ROLES))
    if key == "kv_connector":
        return KvConfig(connectors=frozenset({word}))
    return parse_kv_config(value)


def _from_value(value: object) -> KvConfig:
    roles: set[str] = set()
    connectors: set[str] = set()
    ec_roles: set[str] = set()
    waiting, seen = [value], 0
    while waiting and seen < MAX_NODES:
        node, seen = waiting.pop(), seen + 1
        if isinstance(node, list):
            waiting.extend(node)
        if not isinstance(node, dict):
            continue
        for key, item in node.items():
            if not isinstance(item, str):
                waiting.append(item)
                continue
            word = item.strip().lower()
            match key:
                case "kv_role":
                    roles.update({word} & _KV_ROLES)
                case "ec_role":
                    ec_roles.update({word} & _EC_ROLES)
                case "kv_connector":
                    connectors.add(word)
                case _:
                    # A configuration inside a string, as templates nest them.
                    roles.update(
                        role.lower() for role in _LOOSE_ROLE.findall(item[:MAX_CONFIG_CHARS])
                    )
    return KvConfig(frozenset(roles), frozenset(connectors), frozenset(ec_roles))


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
        return next((self.words[name][0] for name in names if self.words.get(name)), None)

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
