"""The shipped alerts as values of the chart: on or off, delay, severity and thresholds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_COMPARED = re.compile(r"(?P<how>[<>]=?)\s*(?P<sign>-?)(?P<number>\d+(?:\.\d+)?)(?![\w.])")


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert: its defaults, and its expression with a mark in place of each number.

    It is `enabled` by default unless it is only informational.

    `numbers` are the thresholds by name; `marked` has `<name>` in place of each.
    """

    name: str
    lasting: str
    severity: str
    numbers: Mapping[str, float]
    marked: str
    enabled: bool = True

    def values(self) -> dict[str, Any]:
        """Return its entry in values.yaml."""
        return {
            "enabled": self.enabled,
            "severity": self.severity,
            "for": self.lasting,
            **self.numbers,
        }


def alert(rule: Mapping[str, Any]) -> Alert:
    """Return the alert of a rule, with the numbers that may be tuned.

    A threshold is a number other than 0 compared with by < or >. The number at the top level of the
    expression is the `threshold`, and so is the same comparison elsewhere; a number only inside
    brackets decides whether the rest is evaluated at all, and is a `guard`. Without one at the top
    level, the first is the threshold. Further numbers of a kind are numbered: `threshold2`. The
    sign stays in the expression, so that one number serves both sides.
    """
    expr = rule["expr"]
    compared = [found for found in _COMPARED.finditer(expr) if float(found["number"]) != 0]
    top = [found for found in compared if _depth(expr[: found.start()]) == 0] or compared[:1]
    names: dict[tuple[str, str], str] = {}
    marked, end = [], 0
    for found in compared:
        kind = "threshold" if any(_same(found, other) for other in top) else "guard"
        earlier = sum(1 for other, _ in names if other == kind)
        name = names.setdefault((kind, found["number"]), f"{kind}{earlier + 1 if earlier else ''}")
        marked += [expr[end : found.start("number")], f"<{name}>"]
        end = found.end("number")
    numbers = {name: _number(text) for (_, text), name in names.items()}
    return Alert(
        name=rule["alert"],
        lasting=rule["for"],
        severity=rule["labels"]["severity"],
        numbers={name: numbers[name] for name in sorted(numbers, key=_thresholds_first)},
        marked="".join([*marked, expr[end:]]),
    )


def alerts(groups: Sequence[Mapping[str, Any]]) -> dict[str, Alert]:
    """Return all alerts of the groups of rule files, by name."""
    rules = (rule for group in groups for rule in group["rules"] if "alert" in rule)
    return {rule["alert"]: alert(rule) for rule in rules}


def marked_groups(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups with a mark in place of each threshold, for the chart to fill in."""
    return [{**group, "rules": [_marked_rule(rule) for rule in group["rules"]]} for group in groups]


def _marked_rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    expr = alert(rule).marked if "alert" in rule else rule["expr"]
    return {**rule, "expr": expr.strip()}


def _same(one: re.Match[str], other: re.Match[str]) -> bool:
    """Return whether two comparisons share their number: equal, or on both sides of zero."""
    if one["number"] != other["number"]:
        return False
    return one["how"] == other["how"] or one["sign"] != other["sign"]


def _depth(before: str) -> int:
    """Return how many brackets are open at the end of a piece of an expression."""
    return before.count("(") - before.count(")")


def _thresholds_first(name: str) -> tuple[bool, str]:
    return not name.startswith("threshold"), name


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)
