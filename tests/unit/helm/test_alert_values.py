"""The alerts as values: the defaults are the rule files, and each value changes its alert alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from helm.generator.alerts import alert

from support.alert_rules import OPTIONAL_FILES, all_alerts, all_rules, groups
from support.chart import defaults, one, render

JOB = "disagg-node"
SHIPPED = all_alerts()
SEVERITIES = {"page": "critical", "ticket": "warning", "info": "info"}
"""How an alert is ranked, and what its label then says by default."""
TUNABLE = [
    (name, key)
    for name, values in defaults()["alerts"].items()
    for key in values
    if key not in ("enabled", "for", "severity")
]


OPTIONAL = {
    rule["alert"] for path in OPTIONAL_FILES for group in groups(path) for rule in group["rules"]
}


def rendered(alerts: Mapping[str, Any] | None = None, **more: Any) -> list[dict[str, Any]]:
    """All rules that the chart gives, with the alerts that are off by default switched on."""
    wish = {"enabled": True, **more}
    on = {name: {"enabled": True} for name in OPTIONAL}
    asked = {name: on.get(name, {}) | dict(values) for name, values in (alerts or {}).items()}
    return rules({"prometheusRule": wish, "alerts": on | asked})


def rules(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rules that values give, without the dashboards, which take a moment to read."""
    rule = one(render({**values, "dashboards": {"enabled": False}}), "PrometheusRule")
    return [rule for group in rule["spec"]["groups"] for rule in group["rules"]]


def by_name(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in found if "alert" in rule}


def as_labelled(rule: dict[str, Any]) -> dict[str, Any]:
    """A shipped rule with the severity that the chart's label has for it."""
    if "alert" not in rule:
        return rule
    labels = rule["labels"]
    return rule | {"labels": labels | {"severity": SEVERITIES[labels["severity"]]}}


def rule_of(expr: str) -> dict[str, Any]:
    return {"alert": "A", "expr": expr, "for": "5m", "labels": {"severity": "page"}}


def test_by_default_the_rules_are_the_shipped_ones() -> None:
    """All of them in order, with the job of our monitors and the configured severity labels."""
    expected = [
        as_labelled(rule) | {"expr": rule["expr"].strip().replace(".*disagg-node.*", JOB)}
        for rule in all_rules()
    ]

    assert rendered() == expected


def test_informational_alerts_are_off_by_default() -> None:
    found = by_name(rules({"prometheusRule": {"enabled": True}}))

    assert found.keys() == SHIPPED.keys() - OPTIONAL
    assert OPTIONAL


@pytest.mark.parametrize("rest", [0, 1])
def test_only_disabled_alerts_are_left_out(rest: int) -> None:
    off = sorted(SHIPPED)[rest::2]

    found = by_name(rendered({name: {"enabled": False} for name in off}))
    assert found.keys() == SHIPPED.keys() - set(off)


def test_values_of_for_and_severity_apply_to_each_alert() -> None:
    wish = {
        name: {"for": f"{1000 + number}m", "severity": severity}
        for number, name in enumerate(SHIPPED)
        for severity in SEVERITIES.keys() - {SHIPPED[name]["labels"]["severity"]}
    }
    before = by_name(rendered())

    after = by_name(rendered(wish))
    assert after == {
        name: rule
        | {"for": wish[name]["for"]}
        | {"labels": rule["labels"] | {"severity": SEVERITIES[wish[name]["severity"]]}}
        for name, rule in before.items()
    }


def test_threshold_values_apply_to_each_alert_and_change_nothing_else() -> None:
    wish: dict[str, dict[str, float]] = {}
    for number, (name, key) in enumerate(TUNABLE):
        wish.setdefault(name, {})[key] = 1000.5 + number
    small = {"slowShare": 0.0001}  # that no threshold makes an alert which cannot fire
    before = by_name(rendered(targets=small))

    after = by_name(rendered(wish, targets=small))
    for name, values in wish.items():
        expr = after[name]["expr"]
        for key, value in values.items():
            assert str(value) in expr
            expr = expr.replace(str(value), str(defaults()["alerts"][name][key]))
        assert after[name] | {"expr": expr} == before[name]


@pytest.mark.parametrize(("name", "key"), TUNABLE)
def test_an_alert_text_does_not_repeat_a_tunable_number(name: str, key: str) -> None:
    """Except 1, which explains a scale."""
    number, notes = defaults()["alerts"][name][key], SHIPPED[name]["annotations"]

    words = f"{notes['summary']} {notes['description']}".replace(".", " ").split()
    assert number == 1 or {str(number), f"{number:.0%}"}.isdisjoint(words)


def test_no_placeholder_is_left_in_a_rule() -> None:
    for rule in rendered():
        assert not re.search(r"<[a-z_]+>", rule["expr"])


@pytest.mark.parametrize(
    ("target", "value", "words"),
    [
        ("firstToken", "1.0", 'request_time_to_first_token_seconds_bucket:rate5m{le="1.0"}'),
        ("firstToken", "1.0", 'engine_time_to_first_token_seconds_bucket{le="1.0"}'),
        ("firstToken", 10.0, 'request_time_to_first_token_seconds_bucket:rate5m{le="10.0"}'),
        ("betweenTokens", "0.1", 'inter_token_latency_seconds_bucket{le="0.1"}'),
        ("betweenTokens", 0.025, 'inter_token_latency_seconds_bucket{le="0.025"}'),
        ("slowShare", 0.01, " / 0.01 > "),
    ],
)
def test_a_latency_target_replaces_its_default_in_all_rules(
    target: str, value: object, words: str
) -> None:
    default = defaults()["prometheusRule"]["targets"][target]
    before = words.replace(str(value), str(default))

    exprs = [rule["expr"] for rule in rendered(targets={target: value})]
    assert any(words in expr for expr in exprs)
    assert not any(before in expr for expr in exprs)
    assert any(before in rule["expr"] for rule in rendered())


def test_expected_gpus_are_a_recording_rule_with_the_cluster_label() -> None:
    name = "cluster:disagg_expected_gpus:configured"

    found = rules({"cluster": "east", "prometheusRule": {"enabled": True, "expectedGpus": 512}})
    expected = {"record": name, "expr": "vector(512)", "labels": {"cluster": "east"}}
    assert [rule for rule in found if rule.get("record") == name] == [expected]


def test_a_group_without_rules_is_left_out() -> None:
    off = {name: {"enabled": False} for name in SHIPPED if name.startswith("DisaggRouter")}

    values = {"prometheusRule": {"enabled": True}, "alerts": off}
    rule = one(render(values), "PrometheusRule")
    assert "disagg-alerts-router" not in [group["name"] for group in rule["spec"]["groups"]]


def test_runbook_links_use_the_configured_base_url() -> None:
    found = by_name(rendered(runbooks="https://example.com/runbooks/"))

    links = {name: rule["annotations"]["runbook_url"] for name, rule in found.items()}
    assert links == {name: f"https://example.com/runbooks/{name}.md" for name in SHIPPED}


def test_runbook_links_use_the_configured_ending() -> None:
    found = by_name(rendered(runbooks="https://example.com/runbooks", runbookEnding=".html"))

    links = {name: rule["annotations"]["runbook_url"] for name, rule in found.items()}
    assert links == {name: f"https://example.com/runbooks/{name}.html" for name in SHIPPED}


def test_severities_labels_annotations_and_dashboard_url_are_configurable() -> None:
    before = by_name(rendered())

    after = by_name(
        rendered(
            severities={"page": "P1"},
            alertLabels={"team": "inference"},
            alertAnnotations={"channel": "#gpu"},
            dashboardUrl="https://grafana.example.com/d/disagg-cluster",
        )
    )
    words = SEVERITIES | {"page": "P1"}
    for name, rule in after.items():
        ranked = words[SHIPPED[name]["labels"]["severity"]]
        assert rule["labels"] == before[name]["labels"] | {"severity": ranked, "team": "inference"}
        assert rule["annotations"] == before[name]["annotations"] | {
            "channel": "#gpu",
            "dashboard_url": "https://grafana.example.com/d/disagg-cluster",
        }


def test_an_alerts_own_labels_and_annotations_override_the_common_ones() -> None:
    found = rendered(alertLabels={"severity": "none"}, alertAnnotations={"summary": "none"})

    assert found == rendered()


def test_the_job_of_the_rules_is_configurable() -> None:
    found = by_name(rendered(job="my-.*-job"))

    assert 'up{job=~"my-.*-job"}' in found["DisaggNodeDown"]["expr"]


def test_the_job_follows_the_name_of_the_chart() -> None:
    values = {"nameOverride": "gpu-seconds", "prometheusRule": {"enabled": True}}

    assert 'up{job=~"gpu-seconds"}' in by_name(rules(values))["DisaggNodeDown"]["expr"]


@pytest.mark.parametrize(
    ("expr", "numbers", "marked"),
    [
        ("a > 120", {"threshold": 120}, "a > <threshold>"),
        ("rate(a[15m]) >= 0.1", {"threshold": 0.1}, "rate(a[15m]) >= <threshold>"),
        ("a == 1", {}, "a == 1"),
        ("a > 0", {}, "a > 0"),
        ("a > 0.25 or a < -0.25", {"threshold": 0.25}, "a > <threshold> or a < -<threshold>"),
        ("a / (b >= 3) > 0.5", {"threshold": 0.5, "guard": 3}, "a / (b >= <guard>) > <threshold>"),
        (
            "a > 2 and b > 3",
            {"threshold": 2, "threshold2": 3},
            "a > <threshold> and b > <threshold2>",
        ),
        (
            "a / 0.05 > 10 and (b / 0.05 > 10)",
            {"threshold": 10},
            "a / 0.05 > <threshold> and (b / 0.05 > <threshold>)",
        ),
        (
            "f(a > 1) and (c > 0.5) or f(a < -1) and (c > 0.5)",
            {"threshold": 1, "guard": 0.5},
            "f(a > <threshold>) and (c > <guard>) or f(a < -<threshold>) and (c > <guard>)",
        ),
        (
            "a / (b >= 0.1) > 0.1",
            {"threshold": 0.1, "guard": 0.1},
            "a / (b >= <guard>) > <threshold>",
        ),
        ("a > 14.4 * 0.01", {"threshold": 14.4}, "a > <threshold> * 0.01"),
    ],
)
def test_thresholds_are_the_numbers_compared_in_an_expression(
    expr: str, numbers: dict[str, float], marked: str
) -> None:
    found = alert(rule_of(expr))

    assert found.numbers == numbers
    assert found.marked == marked
