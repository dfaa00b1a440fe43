"""Markers of an engine as JSON text, read with every problem at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TypeAlias

from disagg_cluster.config.problems import Finding, config_error, nearest
from disagg_exporter.roles.evidence.types import Markers, Peers

MAX_BYTES = 16 * 1024 * 1024
KEYS = ("argv", "env", "labels", "page", "name", "peers")
_PEERS = ("prefill", "decode")

_Check: TypeAlias = Callable[[str, object], Iterator[Finding]]


def read_markers(data: bytes, source: str) -> Markers:
    """Read `{"argv": [...], "env": {...}, "labels": {...}, "page": [...]}`, each optional.

    Also taken are `name` (of the pod or process) and `peers` (a list of `prefill`, `decode`).

    Raises:
        ConfigError: The text is no such object; the error names all that is wrong with it.
    """
    value = _parsed(data, source)
    if not isinstance(value, dict):
        raise config_error([Finding((), f"expected an object, found {_kind(value)}")], source)
    # What a tool that found nothing writes.
    value = {key: item for key, item in value.items() if item is not None}
    findings = list(_unknown(value))
    for key, check in _CHECKS.items():
        if key in value:
            findings.extend(check(key, value[key]))
    if findings:
        raise config_error(findings, source)
    return Markers(
        argv=tuple(value.get("argv", ())),
        env=value.get("env", {}),
        labels=value.get("labels", {}),
        page=tuple(value.get("page", ())),
        name=value.get("name", ""),
        peers=Peers(**dict.fromkeys(value.get("peers", ()), True)),
    )


def _parsed(data: bytes, source: str) -> object:
    if len(data) > MAX_BYTES:
        raise config_error([Finding((), f"longer than {MAX_BYTES} bytes")], source)
    try:
        value: object = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_once)
    except UnicodeDecodeError:
        raise config_error([Finding((), "not UTF-8")], source) from None
    except json.JSONDecodeError as error:
        place = Finding((), f"no JSON: {error.msg} at column {error.colno}", line=error.lineno)
        raise config_error([place], source) from None
    except RecursionError:
        raise config_error([Finding((), "no JSON that we read: nested too deep")], source) from None
    except _TwiceError as error:
        hint = "only one of them would count"
        raise config_error([Finding((error.key,), "given twice", hint)], source) from None
    except ValueError:
        # Python refuses to turn thousands of digits into a number.
        raise config_error(
            [Finding((), "no JSON that we read: a number too long")], source
        ) from None
    return value


class _TwiceError(Exception):
    """A key that an object has twice."""

    def __init__(self, key: str) -> None:
        self.key = key[:80]
        super().__init__(key)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(key)
        found[key] = value
    return found


def _unknown(value: dict[str, object]) -> Iterator[Finding]:
    for key in value:
        if key not in KEYS:
            near = nearest(key, KEYS)
            hint = f"did you mean {near}?" if near else f"known keys: {', '.join(KEYS)}"
            yield Finding((key,), "unknown key", hint)


def _strings(key: str, value: object) -> Iterator[Finding]:
    if not isinstance(value, list):
        yield Finding((key,), f"expected a list of strings, found {_kind(value)}")
        return
    for at, item in enumerate(value):
        if not isinstance(item, str):
            yield Finding((key, at), f"expected a string, found {_kind(item)}")


def _mapping(key: str, value: object) -> Iterator[Finding]:
    if not isinstance(value, dict):
        yield Finding((key,), f"expected an object of strings, found {_kind(value)}")
        return
    for name, item in value.items():
        if not isinstance(item, str):
            yield Finding((key, name), f"expected a string, found {_kind(item)}")


def _string(key: str, value: object) -> Iterator[Finding]:
    if not isinstance(value, str):
        yield Finding((key,), f"expected a string, found {_kind(value)}")


def _peers(key: str, value: object) -> Iterator[Finding]:
    if not isinstance(value, list):
        yield Finding((key,), f"expected a list, found {_kind(value)}")
        return
    for at, item in enumerate(value):
        if item not in _PEERS:
            yield Finding((key, at), f"expected one of: {', '.join(_PEERS)}")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


_CHECKS: dict[str, _Check] = {
    "argv": _strings,
    "env": _mapping,
    "labels": _mapping,
    "page": _strings,
    "name": _string,
    "peers": _peers,
}
