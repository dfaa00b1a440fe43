"""As much of a JSON schema validator as our schema needs; it refuses unknown keywords."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_SILENT = {"$defs", "$schema", "default", "description", "title", "type"}


def fits(value: Any, schema: Any, root: Mapping[str, Any] | None = None) -> bool:
    """Return whether a value fits a schema."""
    root = schema if root is None else root
    if "type" in schema and not _TYPES[schema["type"]](value):
        return False
    return all(
        word in _SILENT or _WORDS[word](value, wanted, schema, root)
        for word, wanted in schema.items()
    )


def _ref(value: Any, wanted: Any, schema: Any, root: Any) -> bool:
    return fits(value, root["$defs"][wanted.removeprefix("#/$defs/")], root)


def _properties(value: Any, wanted: Any, schema: Any, root: Any) -> bool:
    return all(fits(item, wanted[key], root) for key, item in value.items() if key in wanted)


def _others(value: Any, wanted: Any, schema: Any, root: Any) -> bool:
    others = [item for key, item in value.items() if key not in schema.get("properties", {})]
    return not others if wanted is False else all(fits(item, wanted, root) for item in others)


def _by_pattern(value: Any, wanted: Any, schema: Any, root: Any) -> bool:
    return all(
        fits(item, each, root)
        for pattern, each in wanted.items()
        for key, item in value.items()
        if re.search(pattern, key)
    )


def _items(value: Any, wanted: Any, schema: Any, root: Any) -> bool:
    return all(fits(item, wanted, root) for item in value)


_WORDS: dict[str, Callable[[Any, Any, Any, Any], bool]] = {
    "$ref": _ref,
    "properties": _properties,
    "additionalProperties": _others,
    "patternProperties": _by_pattern,
    "items": _items,
    "anyOf": lambda value, wanted, _, root: any(fits(value, each, root) for each in wanted),
    "required": lambda value, wanted, *_: set(wanted) <= set(value),
    "enum": lambda value, wanted, *_: value in wanted,
    "const": lambda value, wanted, *_: value == wanted,
    "pattern": lambda value, wanted, *_: re.search(wanted, value) is not None,
    "minimum": lambda value, wanted, *_: value >= wanted,
    "maximum": lambda value, wanted, *_: value <= wanted,
    "exclusiveMinimum": lambda value, wanted, *_: value > wanted,
    "exclusiveMaximum": lambda value, wanted, *_: value < wanted,
}
