"""The generated files of the chart, as text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from helm.generator.alerts import Alert, alerts, marked_groups
from helm.generator.values_table import Value, documented, table
from scripts.request_rules import WHOLE_BOUNDS_SECONDS

from disagg_cluster.nodefile.shape import node_file_schema
from disagg_cluster.planner.settings.planner_file import planner_file_schema
from disagg_exporter.engine_pages.histograms import BETWEEN_TOKENS_BOUNDS_SECONDS

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "disagg-node"

_MARKS = (
    (re.compile(r"\.\*disagg-node\.\*"), "<job>"),
    (
        re.compile(r'(time_to_first_token_(?:seconds_)?bucket(?::rate5m)?\{le=")[\d.]+'),
        r"\1<first_token>",
    ),
    (
        re.compile(r'(inter_token_latency_(?:seconds_)?bucket(?::rate5m)?\{le=")[\d.]+'),
        r"\1<between_tokens>",
    ),
    (re.compile(r"vector\(0\) > 0"), "<expected_gpus>"),
    (re.compile(r"(?<=_slow:)(ratio_rate\d+[mh] / )[\d.]+"), r"\1<slow_share>"),
)
"""Texts in several rules that are one value of the chart; each with its mark."""

_TABLE = ("<!-- values: make chart -->\n", "<!-- end of values -->")
_SEVERITIES = ("page", "ticket", "info")
_DURATION = "^([0-9]+(ms|[smhdwy]))+$"


def generated() -> dict[str, str]:
    """Return every file that `make chart` writes, by its path in the chart's folder."""
    files = sorted((ROOT / "alerts" / "rules").glob("*.yaml"))
    optional = sorted((ROOT / "alerts" / "optional").glob("*.yaml"))
    rules = {path.stem: _groups(path) for path in (*files, *optional)}
    off = {rule["alert"] for path in optional for group in _groups(path) for rule in group["rules"]}
    known = alerts([group for groups in rules.values() for group in groups])
    known = {name: replace(alert, enabled=name not in off) for name, alert in known.items()}
    values = _with_alerts(_read(CHART / "values.yaml"), known)
    dashboards = sorted((ROOT / "grafana" / "dashboards").glob("*.json"))
    return {
        **{f"files/rules/{name}.yaml": _rules_text(groups) for name, groups in rules.items()},
        **{f"files/dashboards/{path.name}": _compact(_read(path)) for path in dashboards},
        "values.yaml": values,
        "values.schema.json": _schema(_read(CHART / "values.schema.json"), known, values),
        "README.md": _with_table(_read(CHART / "README.md"), values),
    }


def _compact(dashboard: str) -> str:
    """Return it on one line: nobody reads the copy, and Helm's Secret has a limited size."""
    return json.dumps(json.loads(dashboard), ensure_ascii=False, separators=(",", ":")) + "\n"


def _groups(path: Path) -> list[dict[str, Any]]:
    return list(yaml.load(_read(path), yaml.CSafeLoader)["groups"])


def _rules_text(groups: list[dict[str, Any]]) -> str:
    head = (
        "# Written by `make chart` from alerts/rules. <job> and the like are filled in by Helm.\n"
    )
    text = yaml.dump(
        {"groups": marked_groups(groups)},
        Dumper=_Dumper,
        sort_keys=False,
        width=1000,
        allow_unicode=True,
    )
    for place, mark in _MARKS:
        text = place.sub(mark, text)
    return head + text


def _with_alerts(values: str, known: Mapping[str, Alert]) -> str:
    above, _, _ = values.partition("\nalerts:\n")
    lines = [f"  {name}: {_in_braces(alert.values())}" for name, alert in known.items()]
    return "\n".join([above, "alerts:", *lines, ""])


def _in_braces(value: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(dict(value), default_flow_style=True, sort_keys=False, width=1000)
    return str(text).strip()


def _with_table(readme: str, values: str) -> str:
    before, begin, rest = readme.partition(_TABLE[0])
    _, end, after = rest.partition(_TABLE[1])
    rows = [_linked(value) for value in documented(values)]
    return f"{before}{begin}\n{table(rows)}\n\n{end}{after}"


def _linked(value: Value) -> Value:
    """Return the value with a link to the alert's runbook."""
    room, _, alert = value.path.partition(".")
    if room != "alerts":
        return value
    return replace(value, comment=f"[runbook](../../docs/runbooks/{alert}.md)")


def _schema(schema: str, known: Mapping[str, Alert], values: str) -> str:
    """Return the schema of values with generated parts: alerts, buckets, node and planner file.

    It is of draft 7, the last that Helm before 3.18 understands.
    """
    root = json.loads(schema)
    root["$defs"] = {
        **_definitions("NodeFile", node_file_schema()),
        **_definitions("PlannerFile", planner_file_schema()),
    }
    root["properties"]["planner"]["properties"]["config"] = {"$ref": "#/$defs/PlannerFile"}
    targets = root["properties"]["prometheusRule"]["properties"]["targets"]["properties"]
    targets["firstToken"] = _bucket_schema(WHOLE_BOUNDS_SECONDS)
    targets["betweenTokens"] = _bucket_schema(BETWEEN_TOKENS_BOUNDS_SECONDS)
    root["properties"]["alerts"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _alert_schema(alert) for name, alert in known.items()},
    }
    _require_defaults(root, yaml.load(values, yaml.CSafeLoader))
    return json.dumps(root, indent=2, ensure_ascii=False) + "\n"


def _require_defaults(schema: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    """Require each value that has a default and without which the templates cannot do.

    `null` takes a default away, and `helm upgrade --reuse-values` knows none that is newer than the
    release: both are then refused by the name of the value. Lists, and maps with keys of the user,
    may be taken away: they are empty then.
    """
    required = []
    for key, below in schema["properties"].items():
        if key in defaults and below.get("additionalProperties") is False:
            _require_defaults(below, defaults[key])
            required.append(key)
        elif key in defaults and not _may_be_missing(below):
            required.append(key)
    schema["required"] = required


def _may_be_missing(schema: Mapping[str, Any]) -> bool:
    if "minProperties" in schema:
        return False
    return "$ref" in schema or not {"object", "array", "null"}.isdisjoint(_types(schema))


def _types(schema: Mapping[str, Any]) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else types


def _definitions(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a file as a definition of that name, beside those of its sections."""
    whole = {key: value for key, value in schema.items() if key not in ("$defs", "$schema")}
    return {**schema["$defs"], name: whole}


def _bucket_schema(bounds: Sequence[float]) -> dict[str, Any]:
    """Accept a bound as the text of its label `le`, or as the number that one would write."""
    return {"anyOf": [{"enum": [str(bound) for bound in bounds]}, {"enum": list(bounds)}]}


def _alert_schema(alert: Alert) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "enabled": {"type": "boolean"},
            "severity": {"enum": list(_SEVERITIES)},
            "for": {"type": "string", "pattern": _DURATION},
            **{name: {"type": "number", "minimum": 0} for name in alert.numbers},
        },
    }


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


class _Dumper(yaml.SafeDumper):
    """YAML with multi-line texts as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
