"""The figures of a run of the fault bench, beside their bars, and its table; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

BARS = {
    "bad_outcomes": 0.0,
    "requests_of_untouched_engines_lost": 0.0,
    "workers_that_stay_dead": 0.0,
    "orphans": 0.0,
    "double_starts": 0.0,
    "counters_that_went_back": 0.0,
    "states_reported_after_10_s": 0.0,
}
"""The most that each figure may be."""

Report = Mapping[str, Any]


def figures(reports: Sequence[Report]) -> dict[str, float | None]:
    """Return the totals over all campaigns."""
    outcomes = [outcome for report in reports for outcome in report["outcomes"]]
    seen = [outcome["observed"] for outcome in outcomes]
    reported = [one["reported_seconds"] for one in seen if one["reported_seconds"] is not None]
    recovered = [one["recovered_seconds"] for one in seen if one["recovered_seconds"]]
    bad = [why for outcome in outcomes for why in outcome["bad"]]
    found: dict[str, float | None] = {
        "faults": float(sum(outcome["fault"] != THE_END for outcome in outcomes)),
        "requests_of_untouched_engines": float(sum(one["answered"] for one in seen)),
        "bad_outcomes": float(sum(bool(outcome["bad"]) for outcome in outcomes)),
        "requests_of_untouched_engines_lost": float(sum(one["lost"] for one in seen)),
        "workers_that_stay_dead": float(sum("stays dead" in why for why in bad)),
        "orphans": float(sum(len(one["left"]) for one in seen)),
        "double_starts": float(sum(len(one["doubled"]) for one in seen)),
        "counters_that_went_back": float(sum("went back" in why for why in bad)),
        "states_reported_after_10_s": float(
            sum("reported only after" in why or "never reported" in why for why in bad)
        ),
        "reported_p95_seconds": _high(reported),
        "recovered_p50_seconds": _middle(recovered),
        "recovered_p95_seconds": _high(recovered),
    }
    for report in reports:
        if covered := report.get("covered"):
            found |= _coverage(covered)
        if seen_by := report.get("by_prometheus"):
            found["prometheus_increase_missing_percent"] = 100 * abs(1 - seen_by)
    return found


COVERAGE_BARS = {
    "gpu_seconds_missing_percent": 0.5,
    "prefill_off_percent": 2.0,
    "decode_off_percent": 2.0,
    # The page lags by up to a second at the first scrape and at the last.
    "prometheus_increase_missing_percent": 2.0,
}
THE_END = "the end"


def _coverage(covered: Mapping[str, Any]) -> dict[str, float]:
    wall = covered["wall"] or 1.0
    off = {
        f"{phase}_off_percent": 100 * abs(covered["phases"][phase] / truth - 1)
        for phase, truth in covered["engines"].items()
        if truth > 0
    }
    return {
        "gpu_seconds": covered["wall"],
        "gpu_seconds_missing_percent": 100 * abs(1 - covered["reported"] / wall),
        "gpu_seconds_unobserved_percent": 100 * covered["unobserved"] / wall,
        **off,
    }


def markdown(reports: Iterable[Report]) -> str:
    """Return the table fault × count × outcome."""
    lines = [
        "| campaign | fault | times | as expected | recovered, s (p50, max) | otherwise |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for report in reports:
        if report.get("lacks"):
            lines.append(f"| {report['campaign']} | not run: no {report['lacks']} | 0 | | | |")
        names = dict.fromkeys(outcome["fault"] for outcome in report["outcomes"])
        for name in names:
            of_it = [each for each in report["outcomes"] if each["fault"] == name]
            lines.append(f"| {report['campaign']} | {name} | {_row(of_it)} |")
    return "\n".join(lines) + "\n"


def _row(outcomes: Sequence[Mapping[str, Any]]) -> str:
    good = sum(not each["bad"] for each in outcomes)
    recovered = [s for each in outcomes if (s := each["observed"]["recovered_seconds"])]
    spread = f"{_middle(recovered):.1f}, {max(recovered):.1f}" if recovered else ""
    reasons: dict[str, int] = {}
    for each in outcomes:
        for why in each["bad"]:
            kind = _kind(why)
            reasons[kind] = reasons.get(kind, 0) + 1
    otherwise = "; ".join(f"{count} x {kind}" for kind, count in reasons.items())
    return f"{len(outcomes)} | {good} | {spread} | {otherwise}"


def _kind(why: str) -> str:
    """Return a reason without the details that differ between faults."""
    return why.partition(", such as")[0].partition(":")[0].lstrip("0123456789 ")


def _middle(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _high(values: Sequence[float]) -> float | None:
    return sorted(values)[min(len(values) * 95 // 100, len(values) - 1)] if values else None
