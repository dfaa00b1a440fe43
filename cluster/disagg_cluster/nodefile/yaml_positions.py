"""A YAML text with the line of everything in it, and its problems as YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from disagg_cluster.config.problems import Finding, YamlPath, config_error
from disagg_cluster.host.files.named_paths import read_bounded

MOST_BYTES = 1_000_000
"""The largest accepted node file."""

MAX_DEPTH = 30
"""The deepest accepted nesting; a YAML anchor that contains itself would never end."""

MAX_PATHS = 50_000
"""The most paths accepted; YAML anchors can expand ten lines into gigabytes."""

_LONGEST_NUMBER = 100
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MOST_DIRECTIVES = 100
_TOO_DEEP = "exceeded maximum nesting depth"
_TOO_MUCH = "too large or nested too deeply for a node file"
_EXPONENT = re.compile(r"-?[0-9]+(\.[0-9]+)?[eE][-+]?[0-9]+$")

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# PyYAML's own reader takes seconds for a megabyte.
_SLOWLY_CHARACTERS = 65_536


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A YAML document: its value, the line (from 1) of each path, and its problems.

    `value` is None if the text is empty or cannot be read; `findings` then says why not.
    """

    value: object
    lines: dict[YamlPath, int]
    findings: tuple[Finding, ...]


class _TooMuchError(Exception):
    """The document is larger or deeper than a node file may be."""


# ValueError: PyYAML takes `2026-13-45` for a date and passes the date's error through.
_REFUSED = (yaml.YAMLError, _TooMuchError, RecursionError, ValueError)


def read_yaml_file(path: Path) -> YamlDocument:
    """Read the one YAML document of a file.

    Raises:
        ConfigError: The file cannot be read, or is not text.
    """
    try:
        return read_yaml(read_bounded(path, MOST_BYTES).decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise config_error([Finding((), f"cannot be read: {why}")], str(path)) from error


def read_yaml(text: str) -> YamlDocument:
    """Read one YAML document; never raises."""
    try:
        _measure(text)
        return _marked(_loader(text, _Loader))
    except yaml.MarkedYAMLError as error:
        # libyaml is ten times as fast, but sometimes judges differently, or gives less detail.
        return _refused(error) if len(text) > _SLOWLY_CHARACTERS else _slowly(text)
    except _REFUSED as error:
        return _refused(error)


def _slowly(text: str) -> YamlDocument:
    try:
        return _marked(_loader(text, yaml.SafeLoader))
    except _REFUSED as error:
        return _refused(error)


def _refused(error: Exception) -> YamlDocument:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        words = ", ".join(part for part in (error.context, error.problem) if part)
        # libyaml 0.2.6 counts nesting itself, and reads ahead of the events that we count.
        if _TOO_DEEP in words:
            return _unreadable(_TOO_MUCH)
        at = mark.line + 1 if mark else None
        hint = "indent with spaces; YAML takes no tabs" if "'\\t'" in words else ""
        return _unreadable(f"not valid YAML: {words}", at, hint)
    if isinstance(error, (_TooMuchError, RecursionError)):
        return _unreadable(_TOO_MUCH)
    hint = "put what looks like a date or a number, but is none, in quotes"
    return _unreadable(f"not valid YAML: {error}".splitlines()[0], hint=hint)


def _measure(text: str) -> None:
    """Refuse what is too deep or too large, event by event: building nodes would recurse."""
    # libyaml compares each with all those before it.
    if text.count("\n%") > _MOST_DIRECTIVES:
        raise _TooMuchError
    loader, depth, count = _Loader(text), 0, 0
    while loader.check_event():
        event = loader.get_event()  # type: ignore[no-untyped-call] # of types-PyYAML
        count += 1
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or count > 4 * MAX_PATHS:
            raise _TooMuchError


def _loader(text: str, kind: type[yaml.SafeLoader]) -> yaml.SafeLoader:
    """Return a loader of a text; in JSON, 9e-05 is a number, which YAML 1.1 takes for text."""
    loader = kind(text)
    if text.lstrip().startswith("{"):
        known = loader.yaml_implicit_resolvers
        number = ("tag:yaml.org,2002:float", _EXPONENT)
        of_numbers = {first: [*known.get(first, ()), number] for first in "-0123456789"}
        loader.yaml_implicit_resolvers = {**known, **of_numbers}
    return loader


def _marked(loader: yaml.SafeLoader) -> YamlDocument:
    node = loader.get_single_node()
    lines: dict[YamlPath, int] = {}
    findings = []
    for count, (path, line, double) in enumerate(_walk(loader, node, ()) if node else ()):
        first = lines.setdefault(path, line)
        if double:
            findings.append(_twice(path, first, line))
        # Not the size of `lines`: keys that are merged repeatedly are not new ones.
        if count > MAX_PATHS:
            raise _TooMuchError
    value = loader.construct_document(node) if node else None
    return YamlDocument(value, lines, tuple(findings))


def _walk(
    loader: yaml.SafeLoader, node: yaml.Node, path: YamlPath, line: int | None = None
) -> Iterator[tuple[YamlPath, int, bool]]:
    """Yield every path below `node`, its line, and whether its key occurred before."""
    if len(path) > MAX_DEPTH:
        raise _TooMuchError
    if line is None:
        yield path, node.start_mark.line + 1, False
    if isinstance(node, yaml.ScalarNode):
        _check_number(node)
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            yield from _walk(loader, item, (*path, position))
    elif isinstance(node, yaml.MappingNode):
        seen: set[object] = set()
        merged: list[yaml.Node] = []
        for key_node, value in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
            elif isinstance(key_node, yaml.ScalarNode):
                _check_number(key_node)
                key = loader.construct_object(key_node)
                key_line = key_node.start_mark.line + 1
                yield (*path, key), key_line, key in seen
                seen.add(key)
                yield from _walk(loader, value, (*path, key), key_line)
        # A mapping's own keys hide the merged ones, whichever comes first.
        for other in merged:
            yield from _walk(loader, other, path)


def _check_number(node: yaml.ScalarNode) -> None:
    """Refuse numbers that PyYAML takes minutes to convert: `1:00:00:…` is one to the base 60."""
    if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
        problem = f"found a number of {len(node.value)} characters"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _twice(path: YamlPath, first: int, line: int) -> Finding:
    return Finding(path, f"written twice (first on line {first})", "keep one of the two", line)


def _unreadable(message: str, line: int | None = None, hint: str = "") -> YamlDocument:
    return YamlDocument(None, {}, (Finding((), message, hint, line),))
