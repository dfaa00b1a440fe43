"""Rewrites pydantic's errors about a node file in this project's own words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from disagg_cluster.config import NodeConfig
from disagg_cluster.config.masking import MASK, follows_secret, is_secret_name, masked_arguments
from disagg_cluster.config.problems import Finding, YamlPath, nearest
from disagg_cluster.nodefile.shape import SchemaEntry, find_entry, home_of

_EXPONENT = re.compile("[eE]")
_YAML_EXPONENT = re.compile(r"\..*[eE][-+]")
_MOST_GUESSES = 100
"""For this many unknown keys the intended key is guessed: each guess compares all known keys."""

_OF_A_VALUE = {
    "string_type": "text",
    "string_unicode": "text in Unicode",
    "string_pattern_mismatch": "text without a NUL character",
    "invalid-json-value": "something that JSON can say",
}
"""What belongs inside a field's value, by the kind of error that reports its absence."""

_SECRET = frozenset({"env", "basic_auth_users", "basic_auth"})
"""Values at or below these keys may be passwords, or hashes as good as passwords."""

_SECRET_PATHS = frozenset({("on_worker_failure", "url"), ("on_worker_failure", "command")})


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of the file's shape.

    `leave_out` is the path without which the rest can be understood; `doubts` are the fields whose
    value is then unknown.
    """

    finding: Finding
    leave_out: YamlPath
    doubts: tuple[YamlPath, ...]


def violations(
    errors: Iterable[ErrorDetails], raw: object, root: type[BaseModel] = NodeConfig
) -> tuple[Violation, ...]:
    """Return every error in our words, one per path; `root` is the shape of the whole file.

    A key that is missing because it is misspelt is reported once, as misspelt.
    """
    found: dict[tuple[YamlPath, bool], Violation] = {}
    absent: dict[YamlPath, Violation] = {}
    unknown = 0
    for error in errors:
        path = _path(error, raw)
        if error["type"] == "missing":
            finding = Finding(path, f"missing: expected {find_entry(path, root).expected}")
            absent[path] = Violation(finding, path, (path,))
        elif error["type"] == "extra_forbidden":
            unknown += 1
            found[path, False] = _unknown_key(path, raw, root, guess=unknown <= _MOST_GUESSES)
        else:
            found.setdefault((path, _is_about_key(error)), _violation(error, path, raw, root))
    meant = {doubt for violation in found.values() for doubt in violation.doubts}
    return (*found.values(), *(lack for path, lack in absent.items() if path not in meant))


def _violation(
    error: ErrorDetails, path: YamlPath, raw: object, root: type[BaseModel]
) -> Violation:
    kind = error["type"]
    entry = find_entry(path, root)
    if _is_about_key(error):
        message = f"expected a name of letters, digits and _ as a key, not {shown(path[-1])}"
        finding = Finding(path, message)
    else:
        value = value_at(path, raw)
        inside = len(path) > len(entry.path)
        reason = error["msg"].removeprefix("Value error, ")
        listed = kind == "literal_error"
        expected = _OF_A_VALUE.get(kind, reason) if inside and not listed else entry.expected
        seen = kind_of(value) if _may_be_secret(path, raw) else shown(value)
        finding = Finding(path, f"expected {expected}, not {seen}", _hint(kind, entry, value))
    return Violation(finding, entry.path, (entry.path,))


def _may_be_secret(path: YamlPath, raw: object) -> bool:
    """Whether a value may be a password, by the names in its path or the option before it."""
    if any(isinstance(key, str) and (key in _SECRET or is_secret_name(key)) for key in path):
        return True
    if path[:2] in _SECRET_PATHS:
        return True
    last = path[-1] if path else None
    if not isinstance(last, int) or last == 0:
        return False
    before = value_at((*path[:-1], last - 1), raw)
    return isinstance(before, str) and follows_secret(before)


def _unknown_key(path: YamlPath, raw: object, root: type[BaseModel], *, guess: bool) -> Violation:
    section, key = path[:-1], str(path[-1])
    present = value_at(section, raw)
    entry = find_entry(section, root)
    free = [known for known in entry.keys if not (isinstance(present, dict) and known in present)]
    meant = nearest(key, free) if guess else None
    home = home_of(key, root)
    if home and not _in_line(section, home):
        home = None
    if home:
        hint = f"it belongs in {home}" if "." in home else "it belongs at the top of the file"
    elif meant:
        hint = f"did you mean {meant!r}?"
    else:
        hint = f"known here: {', '.join(entry.keys)}"
    doubts = ((*section, meant),) if meant and not home else ()
    return Violation(Finding(path, "unknown key", hint), path, doubts)


def _in_line(section: YamlPath, home: str) -> bool:
    """Whether a key's home is above or below the section that it stands in, not beside it.

    `port` below `listen` was hardly meant for a worker, whose key has the same name.
    """
    here = "".join("[]" if isinstance(key, int) else f".{key}" for key in section) + "."
    there = f".{home}".rpartition(".")[0] + "."
    return here.startswith(there) or there.startswith(here)


def _hint(kind: str, entry: SchemaEntry, value: object) -> str:
    if value is None:
        return "give it a value, or leave the key out"
    if entry.choices and isinstance(value, str):
        meant = nearest(value, entry.choices)
        return f"did you mean {meant!r}?" if meant else ""
    if kind == "string_type" and not isinstance(value, (dict, list)):
        return "put it in quotes"
    if kind in ("int_type", "float_type") and isinstance(value, str) and _is_number(value):
        if _EXPONENT.search(value) and not _YAML_EXPONENT.search(value):
            return "YAML takes it for text: an exponent needs a point and a sign, as in 5.0e+10"
        return "write it without quotes"
    return ""


def _is_about_key(error: ErrorDetails) -> bool:
    return error["loc"][-1:] == ("[key]",)


def _path(error: ErrorDetails, raw: object) -> YamlPath:
    """Return the path of an error: its location without pydantic's names for types."""
    path: YamlPath = ()
    for part in error["loc"]:
        if _has(value_at(path, raw), part):
            path = (*path, part)
    return (*path, error["loc"][-1]) if error["type"] == "missing" else path


def _has(value: object, part: object) -> bool:
    if isinstance(value, dict):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def value_at(path: YamlPath, raw: object) -> object:
    """Return the value at a path of the data; the deepest value above it if there is none."""
    for part in path:
        if isinstance(raw, dict):
            raw = raw.get(part)
        elif isinstance(raw, list) and isinstance(part, int):
            raw = raw[part]
    return raw


def shown(value: object) -> str:
    """Return a value as its author wrote it if it is short, otherwise its kind."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        text = f"[{', '.join(_shown_items(value))}]"
    elif isinstance(value, str):
        text = repr(_option_masked(value))
    elif isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**18):
        text = repr(value)
    else:
        text = kind_of(value)
    return text if len(text) <= 60 else kind_of(value)


def _option_masked(text: str) -> str:
    """Return a command line that was written as one text, with secrets masked."""
    words = text.split(" ")
    return " ".join(masked_arguments(words)) if text.startswith("-") else text


def _shown_items(items: list[object]) -> Iterator[str]:
    before: object = ""
    for item in items:
        hidden = isinstance(before, str) and follows_secret(before)
        yield repr(MASK) if hidden else shown(item)
        before = item


def kind_of(value: object) -> str:
    """Return the kind of a value."""
    kinds = {dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
    kinds |= {int: "a number", float: "a number", type(None): "nothing"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
