"""The figures of a run, beside their bars, and its table of faults and outcomes; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.faults_control.kills import Outcome

BARS: Mapping[str, float] = {
    "requests_failed_of_moves": 0.0,
    "moves_not_proven": 0.0,
    "longest_effect_seconds": 10.0,
    "bad_outcomes": 0.0,
    "faults_not_run": 0.0,
    "longest_reported_seconds": 10.0,
    "requests_of_untouched_engines_lost": 0.0,
    "doubled": 0.0,
    "left_processes": 0.0,
    "gpu_seconds_missing_percent": 0.5,
    "prometheus_increase_missing_percent": 2.0,
    "real_moves_not_proven": 0.0,
    "real_requests_failed_of_moves": 0.0,
    "real_longest_effect_seconds": 10.0,
    "real_bad_outcomes": 0.0,
    "real_longest_reported_seconds": 10.0,
    "partition_reported_seconds": 10.0,
    "partition_back_seconds": 10.0,
    "partition_others_reported_down": 0.0,
    "partition_requests_failed": 0.0,
    "partition_restarts": 0.0,
    "partition_gpu_seconds_lost": 0.01,
    "partition_increase_off_ratio": 0.05,
    "false_switched": 0.0,
    "honest_not_proven": 0.0,
}
"""The most that each figure may be."""

Figures = dict[str, float | None]
LEAST_GPU_SECONDS = 1000.0
"""With fewer, the page's lag of a second at the first and the last scrape weighs too much."""

NEVER_SECONDS = 999.0
"""Stands for a state that was never reported: a number above any bar."""


def figures(found: Mapping[str, Any]) -> Figures:
    """Return the figures, those with bars and others; None where a part was not run."""
    return {
        **_of_moves(found.get("moves", {})),
        **_of_faults(found.get("faults", {})),
        **_of_partitions(found.get("partitions", {})),
        **_of_real(found.get("real", {})),
        "lying_engines": found["lies"]["lying_engines"],
        "false_switched": found["lies"]["false_switched"],
        "honest_not_proven": found["lies"]["honest_not_proven"],
    }


def _of_moves(moves: Mapping[str, Any]) -> Figures:
    added = moves["p99_seconds_moving"] - moves["p99_seconds_calm"] if moves else None
    return {
        "moves": moves.get("moves"),
        "moves_not_proven": moves["moves"] - moves["moves_proven"] if moves else None,
        "requests_of_moves": moves.get("requests"),
        "requests_failed_of_moves": moves.get("requests_failed"),
        "p99_seconds_calm": moves.get("p99_seconds_calm"),
        "p99_seconds_moving": moves.get("p99_seconds_moving"),
        "added_p99_seconds": added,
        "longest_effect_seconds": moves.get("longest_effect_seconds"),
        "longest_downtime_seconds": moves.get("longest_downtime_seconds"),
    }


def _of_faults(faults: Mapping[str, Any]) -> Figures:
    outcomes, accounting = faults.get("outcomes"), faults.get("accounting", {})
    wall = accounting.get("gpu_seconds", 0.0)
    return {
        "faults": None if outcomes is None else float(len(outcomes)),
        "faults_not_run": None if outcomes is None else float(len(faults["not_run"])),
        "bad_outcomes": _bad(outcomes),
        "longest_reported_seconds": longest_reported(outcomes),
        "longest_reported_with_a_core_seconds": longest_reported(outcomes, starved=False),
        "requests_of_untouched_engines": _sum(outcomes, "answered"),
        "requests_of_untouched_engines_lost": _sum(outcomes, "lost"),
        "doubled": None if outcomes is None else sum(len(o.observed.doubled) for o in outcomes),
        "left_processes": faults.get("left_processes"),
        "gpu_seconds": accounting.get("gpu_seconds"),
        "gpu_seconds_missing_percent": accounting.get("missing_percent"),
        "prometheus_increase_missing_percent": (
            accounting.get("prometheus_missing_percent") if wall >= LEAST_GPU_SECONDS else None
        ),
    }


def _of_partitions(cuts: Mapping[str, Any]) -> Figures:
    return {
        "partitions": cuts.get("partitions"),
        "partition_reported_seconds": cuts.get("longest_reported_seconds"),
        "partition_back_seconds": cuts.get("longest_back_seconds"),
        "partition_others_reported_down": cuts.get("others_reported_down"),
        "partition_requests": cuts.get("requests"),
        "partition_requests_failed": cuts.get("requests_failed"),
        "partition_restarts": cuts.get("restarts"),
        "partition_gpu_seconds": cuts.get("gpu_seconds"),
        "partition_gpu_seconds_lost": cuts.get("gpu_seconds_lost"),
        "partition_increase_off_ratio": cuts.get("increase_off_ratio"),
    }


def _of_real(real: Mapping[str, Any]) -> Figures:
    moves, outcomes = real.get("moves", {}), real.get("outcomes")
    return {
        "real_moves": moves.get("moves"),
        "real_moves_not_proven": moves["moves"] - moves["moves_proven"] if moves else None,
        "real_requests_of_moves": moves.get("requests"),
        "real_requests_failed_of_moves": moves.get("requests_failed"),
        "real_longest_effect_seconds": moves.get("longest_effect_seconds"),
        "real_longest_downtime_seconds": moves.get("longest_downtime_seconds"),
        "real_faults": None if outcomes is None else float(len(outcomes)),
        "real_bad_outcomes": _bad(outcomes),
        "real_longest_reported_seconds": longest_reported(outcomes),
        "real_longest_reported_with_a_core_seconds": longest_reported(outcomes, starved=False),
    }


def _bad(outcomes: Sequence[Outcome] | None) -> float | None:
    return None if outcomes is None else float(sum(bool(outcome.bad) for outcome in outcomes))


def _sum(outcomes: Sequence[Outcome] | None, what: str) -> float | None:
    if outcomes is None:
        return None
    return float(sum(getattr(outcome.observed, what) for outcome in outcomes))


def longest_reported(outcomes: Sequence[Outcome] | None, *, starved: bool = True) -> float | None:
    """Return the longest time until a state was reported, with or without the wait for a core."""
    return max((_reported(outcome, starved) for outcome in outcomes or ()), default=None)


def _reported(outcome: Outcome, starved: bool) -> float:
    seconds = outcome.observed.reported_seconds
    if seconds is None:
        return NEVER_SECONDS
    return seconds if starved else seconds - outcome.waited_seconds


def markdown(found: Mapping[str, Any]) -> str:
    """Return the table fault × outcome, real engines last."""
    lines = [
        "| fault during a move | times | as expected | done, rolled back "
        "| reported, s (p50, max; given a core) | requests, failed "
        "| untouched: requests, lost | otherwise |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for part, mark in (("faults", ""), ("real", "real vLLM: ")):
        results = found.get(part, {})
        outcomes = results.get("outcomes", ())
        for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
            of_it = [outcome for outcome in outcomes if outcome.kind == kind]
            lines.append(f"| {mark}{kind} | {_row(of_it)} |")
        for kind, why in results.get("not_run", {}).items():
            lines.append(f"| {mark}{kind} | not run: {why} | | | | | | |")
    if cuts := found.get("partitions"):
        lines.append(f"| {_partition_row(cuts)} |")
    return "\n".join(lines) + "\n"


def _partition_row(cuts: Mapping[str, Any]) -> str:
    """Return the row of a node cut off, without a move; its users are those of the other nodes."""
    wrong = {
        "others reported down": cuts["others_reported_down"],
        "workers restarted": cuts["restarts"],
    }
    otherwise = "; ".join(f"{count} {what}" for what, count in wrong.items() if count)
    users = f"{cuts['requests']:,}, {cuts['requests_failed']:,}"
    reported = f"to {cuts['longest_reported_seconds']:.1f}"
    return f"a node cut off | {cuts['partitions']} | | | {reported} | {users} | | {otherwise}"


def _row(outcomes: Sequence[Outcome]) -> str:
    good = sum(not outcome.bad for outcome in outcomes)
    ends = Counter(outcome.ended for outcome in outcomes)
    reported = sorted(s for o in outcomes if (s := o.observed.reported_seconds) is not None)
    spread = f"{reported[len(reported) // 2]:.1f}, {reported[-1]:.1f}" if reported else "never"
    spread += f"; {longest_reported(outcomes, starved=False):.1f}"
    users = (sum(o.requests for o in outcomes), sum(o.requests_failed for o in outcomes))
    direct = (sum(o.observed.answered for o in outcomes), sum(o.observed.lost for o in outcomes))
    reasons = dict.fromkeys(why.replace("|", "/") for o in outcomes for why in o.bad)
    otherwise = "; ".join(reasons)
    return (
        f"{len(outcomes)} | {good} | {ends['done']}, {ends['failed']} | {spread} "
        f"| {users[0]:,}, {users[1]:,} | {direct[0]:,}, {direct[1]:,} | {otherwise[:300]}"
    )
