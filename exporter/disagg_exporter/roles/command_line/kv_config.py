"""vLLM's KV transfer configuration, in every spelling: who produces and who consumes KV."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

MAX_CHARS = 64 * 1024
MAX_NODES = 10_000

# What is left of a configuration that no JSON parser takes: quotes eaten by a shell, doubled by
# a template, or Python's. Only the value of the key counts, whatever stands around it.
_LOOSE_ROLE = re.compile(r"\bkv_role\W{1,12}(kv_producer|kv_consumer|kv_both)\b", re.I)
_LOOSE_CONNECTOR = re.compile(r"\bkv_connector\W{1,12}([A-Za-z]\w{0,80})")
_LOOSE_EC_ROLE = re.compile(r"\bec_role\W{1,12}(ec_producer|ec_consumer|ec_both)\b", re.I)
_ROLES = frozenset({"kv_producer", "kv_consumer", "kv_both"})
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
    text = text[:MAX_CHARS]
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
        return KvConfig(roles=frozenset({word} & _ROLES))
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
                    roles.update({word} & _ROLES)
                case "ec_role":
                    ec_roles.update({word} & _EC_ROLES)
                case "kv_connector":
                    connectors.add(word)
                case _:
                    # A configuration inside a string, as templates nest them.
                    roles.update(role.lower() for role in _LOOSE_ROLE.findall(item[:MAX_CHARS]))
    return KvConfig(frozenset(roles), frozenset(connectors), frozenset(ec_roles))
