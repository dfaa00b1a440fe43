"""The shipped rules as plain values, and the same with shortened times for a test."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ALERTS = Path(__file__).parents[2] / "alerts"
RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
RULE_FILES = sorted((ALERTS / "rules").glob("*.yaml"))
OPTIONAL_FILES = sorted((ALERTS / "optional").glob("*.yaml"))
TEST_FILES = sorted((ALERTS / "tests").glob("*_test.yaml"))
WITHOUT_DAEMON = ALERTS / "without-daemon"

_WINDOW = re.compile(r"\[([\w:]+)\]")
_LENGTH = re.compile(r"(\d+)(ms|s|m|h|d)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_METRIC = re.compile(r"\b(?:[a-z_]+:disagg_[a-z0-9_]+:[a-z0-9_]+|disagg_[a-z0-9_]+)\b")


@dataclass(frozen=True, slots=True)
class HeaderRow:
    """One line of the table of thresholds at the head of an alerts file."""

    alert: str
    severity: str
    lasting: str
    text: str


def groups(path: Path) -> list[dict[str, Any]]:
    """Read the groups of a rule file."""
    return list(yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"])


def group_names(paths: Iterable[Path]) -> list[str]:
    """Return the names of the groups in rule files, in order."""
    return [group["name"] for path in paths for group in groups(path)]


def all_rules() -> list[dict[str, Any]]:
    """Read every shipped rule, alerts and recordings, those off by default included."""
    files = sorted([*RULE_FILES, *OPTIONAL_FILES], key=lambda path: path.name)
    return [rule for path in files for group in groups(path) for rule in group["rules"]]


def all_alerts() -> dict[str, dict[str, Any]]:
    """Read every shipped alert, by name."""
    alerts = [rule for rule in all_rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    return {rule["alert"]: rule for rule in alerts}


def header_table() -> list[HeaderRow]:
    """Read the tables of thresholds at the heads of the alerts files."""
    files = [*RULE_FILES, *OPTIONAL_FILES]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    lines = re.findall(r"^#   (Disagg\w+) +(\w+) +(\w+) +(\S.*)$", text, re.MULTILINE)
    return [HeaderRow(*line) for line in lines]


def metric_names(text: str) -> set[str]:
    """Return the names of our metrics in an expression or a text."""
    return set(_METRIC.findall(text))


def groups_read_by(expressions: Iterable[str], paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the groups of rule files, in order, with those rules alone that expressions read.

    Directly, or by what these rules read in turn.
    """
    recorded = [group for path in paths for group in groups(path)]
    asked = set().union(*map(metric_names, expressions))
    known: set[str] = set()
    while known != asked:
        known = set(asked)
        read = [rule["expr"] for group in recorded for rule in _of(group, asked)]
        asked |= set().union(*map(metric_names, read))
    return [group | {"rules": rules} for group in recorded if (rules := _of(group, asked))]


def _of(group: dict[str, Any], names: set[str]) -> list[dict[str, Any]]:
    return [rule for rule in group["rules"] if rule.get("record") in names]


def hasten(rules: list[dict[str, Any]], divisor: float) -> list[dict[str, Any]]:
    """Divide windows, `for` and intervals, not thresholds. For tests in real time only."""
    return [
        {
            **_hastened(group, ("interval",), divisor),
            "rules": [_hasten_rule(rule, divisor) for rule in group["rules"]],
        }
        for group in rules
    ]


def divided(length: str, divisor: float) -> str:
    """Divide a length of time as Prometheus writes it, such as 90s or 1h30m."""
    parts = _LENGTH.findall(length)
    assert parts, length
    assert "".join(number + unit for number, unit in parts) == length, length
    total = sum(int(number) * _MILLISECONDS[unit] for number, unit in parts)
    return f"{round(total / divisor)}ms"


def _hasten_rule(rule: dict[str, Any], divisor: float) -> dict[str, Any]:
    expr = _WINDOW.sub(lambda found: _divided_window(found.group(1), divisor), rule["expr"])
    return {**_hastened(rule, ("for", "keep_firing_for"), divisor), "expr": expr}


def _hastened(values: dict[str, Any], lengths: tuple[str, ...], divisor: float) -> dict[str, Any]:
    shorter = {key: divided(values[key], divisor) for key in lengths if key in values}
    return {**values, **shorter}


def _divided_window(window: str, divisor: float) -> str:
    """Divide a window, or a subquery's window and step."""
    return "[" + ":".join(divided(length, divisor) for length in window.split(":")) + "]"
