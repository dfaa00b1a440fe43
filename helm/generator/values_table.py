"""The table of values in the chart's README, as the comments of values.yaml tell it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

MARK = "# -- "


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its path, its default, and what its comment says; empty if it has none."""

    path: str
    default: Any
    comment: str


def documented(text: str) -> list[Value]:
    """The values of a values.yaml that the table lists.

    A value with a comment is a row, whatever lies in it, and so is one in braces. Of any other its
    parts are looked at.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise TypeError("values.yaml is not a mapping")
    return list(_rows(root, "", text.splitlines()))


def table(values: list[Value]) -> str:
    """The rows as Markdown."""
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
    """The comment right above a line, from its mark on; empty if it has no mark."""
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
