"""Reads markers of an engine from JSON text, reporting every problem at once."""

from __future__ import annotations

import json
from collections.abc import Iterator

from disagg_cluster.config.problems import Finding, config_error, nearest
from disagg_cluster.host.foreign_json import TooDeepError, parse_foreign
from disagg_exporter.roles.evidence.types import Markers, Peers

MAX_BYTES = 16 * 1024 * 1024
_PEERS = ("prefill", "decode")
_SHAPES: dict[str, tuple[type[list[object]] | type[dict[str, object]] | type[str], str]] = {
    "argv": (list, "a list of strings"),
    "env": (dict, "an object of strings"),
    "labels": (dict, "an object of strings"),
    "page": (list, "a list of strings"),
    "name": (str, "a string"),
    "peers": (list, "a list"),
}
"""Accepted keys, and the type of each."""

_KINDS: dict[type, str] = {
    **{type(None): "null", bool: "true or false", int: "a number", float: "a number"},
    **{str: "a string", list: "a list", dict: "an object"},
}
"""Names of JSON types."""


def read_markers(data: bytes, source: str) -> Markers:
    """Read `{"argv": [...], "env": {...}, "labels": {...}, "page": [...]}`, each optional.

    Also accepted are `name` (of the pod or process) and `peers` (a list of `prefill`, `decode`).

    Raises:
        ConfigError: The text is no such object; the error lists all problems.
    """
    value = _parsed(data, source)
    if not isinstance(value, dict):
        raise config_error(
            [Finding((), f"expected an object, found {_KINDS[type(value)]}")], source
        )
    # A tool that found nothing may write null.
    value = {key: item for key, item in value.items() if item is not None}
    findings = list(_unknown(value))
    for key in value.keys() & _SHAPES.keys():
        findings.extend(_misfits(key, value[key]))
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
    line = None
    try:
        if len(data) <= MAX_BYTES:
            return parse_foreign(data.decode("utf-8-sig"), object_pairs_hook=_once)
        why = f"longer than {MAX_BYTES} bytes"
    except UnicodeDecodeError:
        why = "not UTF-8"
    except json.JSONDecodeError as error:
        why, line = f"no JSON: {error.msg} at column {error.colno}", error.lineno
    except TooDeepError:
        why = "no JSON that we read: nested too deep"
    except _TwiceError as error:
        twice = Finding((error.key,), "given twice", "only one of them would count")
        raise config_error([twice], source) from None
    except ValueError:
        # Python refuses to convert thousands of digits into a number.
        why = "no JSON that we read: a number too long"
    raise config_error([Finding((), why, line=line)], source)


class _TwiceError(Exception):
    """A key that occurs twice in an object."""

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
        if key not in _SHAPES:
            near = nearest(key, _SHAPES)
            hint = f"did you mean {near}?" if near else f"known keys: {', '.join(_SHAPES)}"
            yield Finding((key,), "unknown key", hint)


def _misfits(key: str, value: object) -> Iterator[Finding]:
    kind, noun = _SHAPES[key]
    if not isinstance(value, kind):
        yield Finding((key,), f"expected {noun}, found {_KINDS[type(value)]}")
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for at, item in items if kind is not str else ():
        if key == "peers" and item not in _PEERS:
            yield Finding((key, at), f"expected one of: {', '.join(_PEERS)}")
        elif not isinstance(item, str):
            yield Finding((key, at), f"expected a string, found {_KINDS[type(item)]}")
