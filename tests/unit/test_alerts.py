"""Alerts, their runbooks, their tests and the names they use belong together."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from scripts.history_rules import history_rules
from scripts.request_rules import request_rules

from disagg_cluster.cli.main import main
from disagg_cluster.planner.diagnose.verdict.values import Cause, RemedyKind
from disagg_cluster.planner.diagnose.words.vocabulary import CAUSES as CAUSE_WORDS
from disagg_exporter.devices.dcgm.device_source import DcgmDevices
from disagg_exporter.devices.nvml.device_source import NvmlDevices
from disagg_exporter.devices.simulated import SimDevices
from disagg_exporter.devices.source import NoDevices
from disagg_exporter.metrics.family import MetricType
from disagg_exporter.metrics.table import FAMILIES
from support.alert_rules import (
    ALERTS,
    RUNBOOKS,
    TEST_FILES,
    WITHOUT_DAEMON,
    HeaderRow,
    all_alerts,
    all_rules,
    divided,
    group_names,
    hasten,
    header_table,
    metric_names,
)

CAUSES = RUNBOOKS.parent / "causes"
_TYPED = re.compile(r"(?:^|[`(]|-- |sudo )disagg-node ([a-z]+(?: [^`\n#]*)?)", re.MULTILINE)
COMMANDS = sorted(
    {
        typed.split("  ")[0].rstrip('") ')
        for page in (*RUNBOOKS.glob("*.md"), *CAUSES.glob("*.md"))
        for typed in _TYPED.findall(page.read_text(encoding="utf-8"))
    }
)
"""Our commands in runbooks, for use on a node, in a pod or elsewhere."""
RULES = all_rules()
ALERT = all_alerts()
NAMES = sorted(ALERT)
PAGES = sorted(path.name for path in RUNBOOKS.glob("*.md"))
HISTOGRAMS = [family.name for family in FAMILIES if family.kind is MetricType.HISTOGRAM]
KNOWN = (
    {family.name for family in FAMILIES}
    | {f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "count", "sum")}
    | {rule["record"] for rule in RULES if "record" in rule}
)
TESTS = "".join(path.read_text(encoding="utf-8") for path in TEST_FILES)
LEVEL = re.compile(
    "(?:(?:cluster|node|engine|model|namespace|role|gpu|reason|unit|component|part)(?:_|$))+"
)
UNIT = re.compile(
    "_(?:seconds|tokens|requests|watts|seconds_bucket|arrivals|rejections|ends|per_hour)$"
)
FINER = {"node", "engine", "gpu", "gpu_name", "model_name", "engine_namespace", "role"}
CULPRITS = {"cluster", "node", "worker", "engine", "gpu", "role", "model_name"}


def test_the_alert_on_unread_gpus_says_which_daemons_do_not_look_again() -> None:
    """One that launches nothing looks every 15 s (`gpus_appeared`)."""
    text = ALERT["DisaggGpusUnread"]["annotations"]["description"]

    assert "if it launches workers, it looks for the driver again only when" in text


def test_the_runbook_of_failing_collectors_lists_every_part_of_the_daemon() -> None:
    root = RUNBOOKS.parents[1]
    sources = [
        path.read_text(encoding="utf-8")
        for package in ("exporter", "cluster")
        for path in (root / package).rglob("*.py")
        if "planner" not in path.parts
    ]
    named = {
        name
        for text in sources
        for name in re.findall(r'COLLECTOR = "([^"]+)"|CollectorHealth\(\s*"([^"]+)"', text)
        for name in filter(None, name)
    }
    page = (RUNBOOKS / "DisaggCollectorFailing.md").read_text(encoding="utf-8")

    [others] = re.findall(r'collector!~"([^"]+)"', ALERT["DisaggCollectorFailing"]["expr"])

    assert {"checkpoint", "control_token", "supervision"} <= named
    assert {
        name
        for name in named
        if not re.fullmatch(others, name) and f"`{name.partition(':')[0]}" not in page
    } == set()


@pytest.mark.parametrize("source", [NvmlDevices, DcgmDevices, SimDevices, NoDevices])
def test_every_source_of_devices_has_its_own_alert_and_not_that_of_other_collectors(
    source: type,
) -> None:
    [own] = re.findall(r'collector=~"([^"]+)"', ALERT["DisaggDevicesUnreadable"]["expr"])
    [not_others] = re.findall(r'collector!~"([^"]+)"', ALERT["DisaggCollectorFailing"]["expr"])

    assert re.fullmatch(own, source.name)
    assert re.fullmatch(not_others, source.name)


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_severity_duration_runbook_culprit_and_value(name: str) -> None:
    rule = ALERT[name]
    labels, notes = rule["labels"], rule["annotations"]

    assert name.startswith("Disagg")
    assert labels["severity"] in ("page", "ticket", "info")
    assert rule["for"]
    assert notes["runbook_url"] == f"docs/runbooks/{name}.md"
    assert notes["summary"].endswith(".")
    named = set(re.findall(r"\$labels\.(\w+)", notes["summary"])) & CULPRITS
    assert named or name == "DisaggNoNodes"
    assert "$value" in notes["description"] or name == "DisaggNodeDown"


@pytest.mark.parametrize(
    "path", [*TEST_FILES, WITHOUT_DAEMON / "tests" / "dcgm_test.yaml"], ids=lambda path: path.name
)
def test_a_promtool_test_sets_the_evaluation_order_of_its_groups(path: Path) -> None:
    """Unlisted groups run in random order, which may delay an alert by two evaluations."""
    test = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)

    read = (path.parent / name for name in test["rule_files"])
    assert test["group_eval_order"] == group_names(read)


@pytest.mark.parametrize("name", NAMES)
def test_a_number_in_an_alert_agrees_with_its_noun(name: str) -> None:
    """`1 GPUs` is written nowhere: the s is conditional, or the number is of at least two."""
    texts = " ".join(ALERT[name]["annotations"].values())
    if ALERT[name]["expr"].endswith(" > 1"):
        return

    assert re.findall(r"\{\{ \$value \}\} (?!times)[a-zA-Z]+s\b", texts) == []


def test_alerts_and_runbooks_are_one_to_one() -> None:
    assert sorted([f"{name}.md" for name in NAMES] + ["index.md"]) == PAGES


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_has_its_severity_and_its_four_sections(
    name: str,
) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
    severity = ALERT[name]["labels"]["severity"]

    assert text.startswith(f"# {name}\n\nSeverity `{severity}`. ")
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert titles == ["What it means", "Look at", "Do", "Silence"]
    assert all(part.strip() for part in re.split(r"^## .+$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_of_a_runbook_accepts_its_options(words: str) -> None:
    arguments = shlex.split(words)

    done = CliRunner().invoke(main, [*arguments, "--help"])

    assert done.exit_code == 0, done.output
    assert done.output.startswith("Usage: ")
    named = [word.partition("=")[0] for word in arguments if word.startswith("-")]
    assert [option for option in named if option not in done.output] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_silence_uses_only_labels_of_its_alert(name: str) -> None:
    """Another label would silence nothing. Labels are those named by the rule or its summary."""
    text = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
    rule = ALERT[name]
    told = " ".join((rule["expr"], rule["annotations"]["summary"], *rule["labels"]))

    for command in re.findall(r"amtool silence add (.+)", text):
        labels = dict(word.split("=", 1) for word in shlex.split(command) if "=" in word)
        assert labels.pop("alertname") == name
        written = {label for label in labels if not label.startswith("--")}
        assert {label for label in written if not re.search(rf"\b{label}\b", told)} == set()


def test_the_index_lists_every_alert_with_its_severity() -> None:
    text = (RUNBOOKS / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+) \|", text, re.MULTILINE)

    severities = {name: rule["labels"]["severity"] for name, rule in ALERT.items()}
    assert {name: severity for name, _, severity in rows} == severities
    assert all(name == page for name, page, _ in rows)


def test_the_header_table_lists_every_alert_with_its_severity_and_duration() -> None:
    listed = [(row.alert, row.severity, row.lasting) for row in header_table()]

    rules = [rule for rule in RULES if "alert" in rule]
    written = [(rule["alert"], rule["labels"]["severity"], rule["for"]) for rule in rules]
    assert sorted(listed) == sorted(written)


@pytest.mark.parametrize("row", header_table(), ids=lambda row: row.alert)
def test_thresholds_and_windows_of_the_header_table_match_the_rules(row: HeaderRow) -> None:
    expr = " ".join(ALERT[row.alert]["expr"].split())
    if row.alert == "DisaggNodeOffMedian":  # its minimum of nodes is in the rule that it reads
        expr += next(
            rule["expr"]
            for rule in RULES
            if rule.get("record") == "node_role_model_gpu:disagg_occupancy_off_median:ratio_rate5m"
        )

    for comparison, number in re.findall(r"([<>]=?) ([0-9.]+)", row.text):
        assert f"{comparison} {number}" in expr
    for window in re.findall(r"(?:over|in) (\d+[mh])", row.text):
        assert f"[{window}]" in expr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert", rule.get("record")))
def test_a_rule_uses_only_names_that_are_exported_or_recorded(rule: dict[str, str]) -> None:
    names = metric_names(rule["expr"])

    # Values that an operator configures belong to no series.
    assert names or "up{" in rule["expr"] or rule["expr"] == "vector(0) > 0"
    assert names - KNOWN == set()


@pytest.mark.parametrize("page", PAGES)
def test_a_runbook_uses_only_names_that_are_exported_or_recorded(page: str) -> None:
    text = (RUNBOOKS / page).read_text(encoding="utf-8")

    assert metric_names(text) - KNOWN - {"disagg_steps"} == set()


@pytest.mark.parametrize("name", [rule.get("alert", rule.get("record")) for rule in RULES])
def test_every_rule_is_touched_by_a_test(name: str) -> None:
    assert re.search(rf"(?<![\w:]){re.escape(name)}(?![\w:])", TESTS)


def test_a_record_is_named_by_level_metric_and_operation() -> None:
    """The unit of a rate names what it is a rate of; a quotient of rates is a ratio_rate."""
    for name in sorted(KNOWN):
        if ":" not in name:
            continue
        level, metric, operation = name.split(":")
        assert LEVEL.fullmatch(level), name
        if re.fullmatch(r"rate\d+[mh]", operation):
            assert UNIT.search(metric), name


def test_no_record_is_only_another_name_of_a_record() -> None:
    for rule in RULES:
        assert not ("record" in rule and re.fullmatch(r"\w+:\w+:\w+", rule["expr"])), rule


def test_a_cluster_record_aggregates_away_all_finer_labels() -> None:
    """Records read by cluster alone keep their labels, so that no query gets a second series."""
    outer = {}
    for rule in RULES:
        if rule.get("record", "").startswith("cluster:"):
            told = re.search(r"\b(?:sum|max|count) by \(([^)]*)\)", rule["expr"])
            outer[rule["record"]] = set(told[1].split(", ")) if told else {"cluster"}

    assert {name: labels & FINER for name, labels in outer.items() if labels & FINER} == {}


def test_rules_over_several_hours_read_recorded_sums() -> None:
    """Six hours of the engines of a large fleet are millions of samples; restarts are few."""
    for rule in RULES:
        for metric, hours in re.findall(r"\b(disagg_\w+)(?:{[^}]*})?\[(\d+[hd])", rule["expr"]):
            name = rule.get("alert", rule.get("record"))
            assert hours == "1h" or metric == "disagg_worker_restarts_total", name


def test_exactly_eight_alerts_have_severity_page() -> None:
    assert {name for name, rule in ALERT.items() if rule["labels"]["severity"] == "page"} == {
        "DisaggEngineDown",
        "DisaggEngineStalled",
        "DisaggGpusMissing",
        "DisaggItlBurnFast",
        "DisaggPoolFull",
        "DisaggPoolVanished",
        "DisaggRouterErrors",
        "DisaggTtftBurnFast",
    }


def test_the_committed_latency_rules_match_their_generator() -> None:
    """Written by: python -m scripts.request_rules > alerts/rules/disagg-recording-requests.yaml."""
    written = ALERTS / "rules" / "disagg-recording-requests.yaml"

    assert written.read_text(encoding="utf-8") == request_rules()


def test_the_committed_history_rules_match_their_generator() -> None:
    """Written by: python -m scripts.history_rules > alerts/rules/disagg-recording-history.yaml."""
    written = ALERTS / "rules" / "disagg-recording-history.yaml"

    assert written.read_text(encoding="utf-8") == history_rules()


def test_the_alertmanager_example_names_existing_alerts() -> None:
    config = yaml.safe_load((ALERTS / "alertmanager.yaml").read_text(encoding="utf-8"))

    for rule in config["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            label, _, pattern = _parts(matcher)
            assert label == "alertname" or (label, pattern) == ("severity", "page|critical")
            if label == "severity":
                continue
            assert any(re.fullmatch(pattern, name) for name in NAMES), pattern


def test_a_ticket_of_the_alertmanager_example_holds_back_no_page() -> None:
    """DisaggPoolReduced fires only beside the pages of engines, so it counts as one."""
    config = yaml.safe_load((ALERTS / "alertmanager.yaml").read_text(encoding="utf-8"))

    for rule in config["inhibit_rules"]:
        sources, targets = _named(rule["source_matchers"]), _named(rule["target_matchers"])
        if 'severity!~"page|critical"' not in rule["target_matchers"]:
            quiet = {name for name in sources if ALERT[name]["labels"]["severity"] != "page"}
            tickets = quiet - {"DisaggPoolReduced"}
            pages = {name for name in targets if ALERT[name]["labels"]["severity"] == "page"}
            assert not (tickets and pages), (tickets, pages)


def _parts(matcher: str) -> tuple[str, str, str]:
    """Return label, operator and value of an Alertmanager matcher."""
    found = re.fullmatch(r'(\w+)(!=|!~|=~|=)"(.+)"', matcher)
    assert found is not None, matcher
    label, how, value = found.groups()
    return label, how, value


def _named(matchers: list[str]) -> set[str]:
    """Return the alerts whose names all matchers of an inhibition rule accept."""
    found = set(NAMES)
    for matcher in matchers:
        label, how, pattern = _parts(matcher)
        if label == "alertname":
            wanted = not how.startswith("!")
            found = {name for name in found if bool(re.fullmatch(pattern, name)) == wanted}
    return found


def test_the_bottleneck_alert_describes_every_action() -> None:
    told = ALERT["DisaggBottleneck"]["annotations"]["description"]

    named = set(re.findall(r'eq \$labels\.action "(\w+)"', told))
    assert named == {each.value for each in RemedyKind} - {"none"}


@pytest.mark.parametrize("cause", Cause)
def test_a_cause_has_a_page_with_its_four_sections(cause: Cause) -> None:
    text = (CAUSES / f"{cause}.md").read_text(encoding="utf-8")

    assert text.startswith(f"# {cause}\n")
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert titles == ["Evidence", "Confirm", "Do", "Easily confused with"]
    assert all(part.strip() for part in re.split(r"^## .+$", text, flags=re.MULTILINE))
    assert "```sh" in text
    assert metric_names(text) - KNOWN == set()


def test_the_index_lists_every_cause_and_explains_every_action() -> None:
    text = (CAUSES / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (.+) \|$", text, re.MULTILINE)

    assert rows == [(cause, cause, words) for cause, words in CAUSE_WORDS.items()]
    assert {path.stem for path in CAUSES.glob("*.md")} == {"index", *Cause}
    assert re.findall(r"^### (\w+)$", text, re.MULTILINE) == list(RemedyKind)


def test_hastening_divides_only_windows_intervals_and_durations() -> None:
    rule = {"alert": "A", "expr": "rate(a:rate5m[5m]) > 120", "for": "1h", "labels": {"b": "5m"}}

    [group] = hasten([{"name": "g", "interval": "2m", "rules": [rule]}], 30)

    assert group["interval"] == "4000ms"
    assert group["rules"] == [{**rule, "expr": "rate(a:rate5m[10000ms]) > 120", "for": "120000ms"}]
    assert divided("1h30m", 2) == "2700000ms"
