"""A Prometheus' data folder with a situation in it, our recording rules and alerts evaluated."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from bench.rollup.server import Prometheus, running
from grafana.pictures.recording import Line

RULES = Path(__file__).parents[2] / "alerts" / "rules"
_STEP = "15s"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
Rule = dict[str, Any]


def write(
    lines: Iterable[Line], data: Path, *, end_seconds: int, seconds: float, scrape_seconds: int
) -> None:
    """Make blocks of the series, then of what each level of rules says of them.

    A rule sees what rules of lower levels made; what a rule itself said before it does not see.
    """
    source = data.parent / "series.om"
    with source.open("w", encoding="utf-8") as out:
        out.writelines(openmetrics(lines))
    _promtool("openmetrics", "--quiet", str(source), str(data))
    source.unlink()
    start_seconds = int(end_seconds - seconds)
    for level in levels(rules()):
        file = data.parent / "level.yaml"
        file.write_text(yaml.safe_dump({"groups": [{"name": "level", "rules": level}]}))
        with served(data, scrape_seconds) as server:
            _promtool(
                *("rules", f"--start={start_seconds}", f"--end={end_seconds}"),
                *(f"--url=http://127.0.0.1:{server.port}", f"--output-dir={data}"),
                *(f"--eval-interval={_STEP}", str(file)),
            )


def served(data: Path, scrape_seconds: int) -> contextlib.AbstractContextManager[Prometheus]:
    """A Prometheus over the data, to which a series that missed a scrape has ended.

    A real one marks where a series ends; blocks made of text have no such marks.
    """
    return running(data, f"--query.lookback-delta={scrape_seconds + 5}s")


def rules() -> list[Rule]:
    """Our recording rules, and each alert as two: where it holds, and where for long enough."""
    found = []
    for path in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                found += [rule] if "record" in rule else _of_alert(rule)
    return found


def _of_alert(rule: Rule) -> list[Rule]:
    held = f"condition:{rule['alert']}"
    seconds = max(_seconds(_STEP), _seconds(rule.get("for", _STEP)))
    window, evaluations = f"{seconds}s", seconds // _seconds(_STEP)
    firing = f"(count_over_time({held}[{window}]) >= {evaluations}) ^ 0"
    labels = {**rule.get("labels", {}), "alertname": rule["alert"], "alertstate": "firing"}
    return [
        {"record": held, "expr": f"({rule['expr']}) ^ 0"},
        {"record": "ALERTS", "expr": firing, "labels": labels},
    ]


def levels(found: list[Rule]) -> list[list[Rule]]:
    """The rules, those first that read nothing that rules make; alerts of before are memory."""
    made = {rule["record"] for rule in found}
    reads: dict[str, set[str]] = {name: set() for name in made}
    for rule in found:
        names = set(re.findall(r"[A-Za-z_:][\w:]*", rule["expr"]))
        reads[rule["record"]] |= (names & made) - {rule["record"], "ALERTS"}
    known: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in known:
            known[name] = 1 + max((level(each) for each in reads[name]), default=-1)
        return known[name]

    by_level: Mapping[int, list[Rule]] = {level(name): [] for name in sorted(made)}
    for rule in found:
        by_level[level(rule["record"])].append(rule)
    return [by_level[number] for number in sorted(by_level)]


def openmetrics(lines: Iterable[Line]) -> Iterable[str]:
    """The text that promtool makes blocks of."""
    told = ""
    for line in sorted(lines, key=lambda each: each.name):
        if line.name != told:
            told = line.name
            yield f"# TYPE {told} gauge\n"
        for time, value in zip(line.times, line.values, strict=True):
            yield f"{line.name}{{{line.labels}}} {value!r} {time:.3f}\n"
    yield "# EOF\n"


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * _SECONDS[duration[-1]]


def _promtool(*arguments: str) -> None:
    done = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", *arguments], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"promtool {' '.join(arguments)}: {done.stderr}")
