"""The committed dashboards, their panels and the queries in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "grafana" / "dashboards"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))

CHOICES = {
    "cluster": ".*",
    "model": ".+",
    "namespace": ".*",
    "node": "demo-node",
    "gpu": ".*",
    "engine": ".*",
    "role": ".*",
    "job": "disagg-node",
    "__rate_interval": "30s",
    "__rate_interval_ms": "30000",
    "__range": "5m",
}
"""The values that Grafana would choose for the variables on the demo."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel, or of an annotation, which may be off by default."""

    dashboard: str
    panel: str
    expr: str
    shown: bool = True

    @property
    def text(self) -> str:
        """The expression with every variable filled in."""
        return filled(self.expr, CHOICES)


def filled(expr: str, values: Mapping[str, str]) -> str:
    """Return `expr` with its variables replaced; an unknown one is a KeyError."""
    return re.sub(r"\$\{?([a-z_]\w*)\}?", lambda found: values[found[1]], expr)


def load(name: str) -> dict[str, Any]:
    """Return a committed dashboard."""
    model: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return model


def panels(model: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every panel with content, those in folded rows included."""
    for panel in model["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def folded(model: dict[str, Any]) -> set[str]:
    """Return the titles of the panels in folded rows."""
    rows = [panel for panel in model["panels"] if panel["type"] == "row"]
    return {panel["title"] for row in rows for panel in row["panels"]}


def queries(name: str) -> list[Query]:
    """Return every query of a dashboard's panels."""
    return [
        Query(name, panel["title"], target["expr"])
        for panel in panels(load(name))
        for target in panel["targets"]
    ]


def marks(name: str) -> list[Query]:
    """Return every query of a dashboard's annotations."""
    return [
        Query(name, mark["name"], mark["target"]["expr"], mark["enable"])
        for mark in load(name)["annotations"]["list"]
    ]


def links(name: str) -> list[str]:
    """Return the links of a dashboard's panels and of the values in them."""
    found = []
    for panel in panels(load(name)):
        config = panel["fieldConfig"]
        said = [each for override in config["overrides"] for each in override["properties"]]
        of_values = [link for each in said if each["id"] == "links" for link in each["value"]]
        everywhere = [*panel.get("links", ()), *config["defaults"].get("links", ()), *of_values]
        found += [link["url"] for link in everywhere]
    return found


def rules() -> list[dict[str, Any]]:
    """Return all our rules, recording and alerting."""
    return [
        rule
        for path in sorted((ROOT / "alerts" / "rules").glob("*.yaml"))
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]
        for rule in group["rules"]
    ]
