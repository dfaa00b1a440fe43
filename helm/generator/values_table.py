"""The table of values in the chart's README, from the comments of values.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

MARK = "# -- "


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its path, its default, and its comment; empty if it has none."""

    path: str
    default: Any
    comment: str


def documented(text: str) -> list[Value]:
    """Return the values of a values.yaml that the table lists.

    A value with a comment is a row, whatever it contains, and so is one in braces. Of any other
    value the parts are considered.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise TypeError("values.yaml is not a mapping")
    return list(_rows(root, "", text.splitlines()))


def table(values: list[Value]) -> str:
    """Return the rows as Markdown."""
    rows = [f"| `{value.path}` | `{_short(value.default)}` | {value.comment} |" for value in values]
    return "\n".join(["| value | default | what it is |", "| --- | --- | --- |", *rows])


def _rows(node: yaml.MappingNode, above: str, lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        path = f"{above}{key.value}"
        comment = _comment(lines, key.start_mark.line)
        if comment or not isinstance(value, yaml.MappingNode) or value.flow_style:
            yield Value(path, yaml.safe_load(yaml.serialize(value)), comment)
        else:
            yield from _rows(value, f"{path}.", lines)


def _comment(lines: list[str], line: int) -> str:
    """Return the comment right above a line, from its mark on; empty without a mark."""
    found: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        text = lines[line].strip()
        if text.startswith(MARK):
            return " ".join([text.removeprefix(MARK), *found])
        found.insert(0, text.removeprefix("#").strip())
    return ""


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("|", "\\|")
