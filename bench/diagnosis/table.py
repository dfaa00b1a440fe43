"""The table of the diagnosis bench, and its figures with their thresholds."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.diagnosis.generator import read_scenarios
from bench.diagnosis.peers import PEERS
from bench.diagnosis.play import Played
from bench.diagnosis.score import TWO, Scored, Tally, by_cause, is_case_right, said_of
from bench.report import finish

_OUT = Path(__file__).parents[1] / "out" / "diagnosis.json"
_BARS = {
    "wrong_engine_percent": 3.0,
    "wrong_cause_percent": 7.0,
    "not_in_first_two_percent": 2.0,
    "worst_cause_wrong_percent": 20.0,
    "undecided_percent": 5.0,
    "clean_blamed_percent": 1.0,
    "cases_wrong": 0.0,
    "minutes": 20.0,
}
# Least numbers of a whole run.
_LEAST = {"scenarios": 800.0, "clean": 400.0, "least_of_a_cause": 20.0}

Results = Sequence[tuple[Played, Scored]]


def finish_bench(results: Results, seconds: float, options: argparse.Namespace) -> int:
    """Write figures and print the table; 1 if a threshold is missed."""

    def table(_: Mapping[str, float | None], __: Mapping[str, bool]) -> str:
        return _table(results, figures)

    figures = _figures(results, seconds)
    _OUT.parent.mkdir(parents=True, exist_ok=True)
    _OUT.with_suffix(".md").write_text(_table(results, figures), encoding="utf-8")
    missed = finish(
        _OUT, figures, _BARS, table, as_json=options.json, only=options.only, seed=options.seed
    )
    is_whole = not options.only and options.count is None
    return max(missed, int(is_whole and _has_too_few(figures)))


def _has_too_few(figures: Mapping[str, float | None]) -> bool:
    return any((figures[name] or 0.0) < least for name, least in _LEAST.items())


def _percent(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


def _figures(results: Results, seconds: float) -> dict[str, float | None]:
    tallies = by_cause(results)
    two = tallies.pop(TWO, Tally())
    faulty = sum(tally.scenarios for tally in tallies.values())
    clean = [scored for played, scored in results if not played.truth.causes]
    faultless = [scored for played, scored in results if not played.scenario.truth.causes]
    wrong_by_cause = [1 - tally.cause / tally.scenarios for tally in tallies.values()]
    undecided = sum(scored.undecided for _, scored in results)
    right_in_time = sum(tally.in_time for tally in tallies.values())
    return {
        "scenarios": float(len(results)),
        "clean": float(len(clean)),
        "least_of_a_cause": float(min((t.scenarios for t in tallies.values()), default=0)),
        "wrong_engine_percent": _percent(faulty - sum(t.engine for t in tallies.values()), faulty),
        "wrong_cause_percent": _percent(faulty - sum(t.cause for t in tallies.values()), faulty),
        "not_in_first_two_percent": _percent(
            faulty - sum(t.cause_in_two for t in tallies.values()), faulty
        ),
        "worst_cause_wrong_percent": 100 * max(wrong_by_cause) if wrong_by_cause else None,
        "undecided_percent": _percent(undecided, len(results)),
        "clean_blamed_percent": _percent(sum(each.blamed for each in clean), len(clean)),
        # Without faults whose cost is too small to count.
        "faultless": float(len(faultless)),
        "faultless_blamed_percent": _percent(
            sum(each.blamed for each in faultless), len(faultless)
        ),
        "blamed_before_onset_percent": _percent(
            sum(scored.blamed for played, scored in results if played.truth.causes),
            faulty + two.scenarios,
        ),
        "two_at_once": float(two.scenarios),
        "two_not_both_first_percent": _percent(two.scenarios - two.cause_in_two, two.scenarios),
        "cases_wrong": float(sum(not is_case_right(*each) for each in _cases(results))),
        "late_percent": _percent(faulty - right_in_time, faulty),
        "cpu_seconds_each": sum(p.cpu_seconds for p, _ in results) / max(1, len(results)),
        "diagnosis_seconds_each": sum(p.diagnosis_seconds for p, _ in results)
        / max(1, len(results)),
        "minutes": seconds / 60,
    }


def _table(results: Results, figures: Mapping[str, float | None]) -> str:
    lines = [
        "| cause | scenarios | right engine | right cause | in first two | median delay "
        "| taken for |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for cause, tally in by_cause(results).items():
        delay = tally.median_delay_seconds
        others = ", ".join(f"{name} {n}" for name, n in tally.taken_for.most_common(3))
        shares = " | ".join(
            f"{100 * part / tally.scenarios:.0f} %"
            for part in (tally.engine, tally.cause, tally.cause_in_two)
        )
        delay_text = f"{delay:.0f} s" if math.isfinite(delay) else "-"
        lines.append(f"| {cause} | {tally.scenarios} | {shares} | {delay_text} | {others} |")
    lines.append("")
    lines += _peer_lines(results)
    lines.append("")
    lines += _case_lines(results)
    lines.append("")
    width = max(map(len, figures)) + 1
    for name, value in figures.items():
        shown = "-" if value is None else f"{value:.2f}"
        lines.append(f"{name:<{width}}{shown:>10}{_bar(name, value)}")
    return "\n".join(lines) + "\n"


def _bar(name: str, value: float | None) -> str:
    """The threshold of a figure, and whether it is met; empty without one."""
    if value is None or (name not in _BARS and name not in _LEAST):
        return ""
    if name in _LEAST:
        return f"   bar >= {_LEAST[name]:g}  {'met' if value >= _LEAST[name] else 'MISSED'}"
    return f"   bar <= {_BARS[name]:g}  {'met' if value <= _BARS[name] else 'MISSED'}"


def _cases(results: Results) -> list[tuple[Played, Scored]]:
    cases = read_scenarios().cases
    return [each for each in results if each[0].scenario.kind in cases]


def _case_lines(results: Results) -> list[str]:
    """The diagnosis of each case from the field."""
    cases = read_scenarios().cases
    lines = ["| case | said | |", "| --- | --- | --- |"]
    for played, scored in _cases(results):
        verdict = "right" if is_case_right(played, scored) else "wrong"
        lines.append(f"| {cases[played.scenario.kind]} | {said_of(scored)} | {verdict} |")
    return lines if len(lines) > 2 else []


def _peer_lines(results: Results) -> list[str]:
    """How often simple rules name the engine, over scenarios with a fault at one engine."""
    of_one = [
        (played, scored)
        for played, scored in results
        if len(played.truth.engines) == 1 and len(played.scenario.cluster.engines) > 1
    ]
    if not of_one:
        return []
    whole = len(of_one)
    lines = [
        f"| names the engine, of {whole} where it is one | |",
        "| --- | ---: |",
        f"| diagnosis | {100 * sum(scored.engine for _, scored in of_one) / whole:.0f} % |",
    ]
    for name in PEERS:
        right = sum(played.peers.get(name) in played.truth.engines for played, _ in of_one)
        lines.append(f"| {name} | {100 * right / whole:.0f} % |")
    return lines
