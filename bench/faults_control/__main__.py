"""Moves of workers between their roles, under load and under faults: `make bench-faults-control`.

Four parts. *Moves*: two of four stand-ins behind a real vllm-router change places again and again
while users ask; what it costs them. *Faults*: at a random moment of a move the daemon is killed, or
the worker, a peer, the router, or the worker is stopped; how the move ends. *Lies*, in virtual
time: engines that answer and do not do their new work; none may be taken for switched.
*Partitions*: a node of three is cut off and comes back. Nothing outlives it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.faults import processes
from bench.faults_control.kills import killed
from bench.faults_control.lies import lied
from bench.faults_control.moves import moved
from bench.faults_control.partitions import cut_off
from bench.report import finish

ROUTER = Path(os.environ.get("DISAGG_ROUTER_PYTHON", ".venv-router/bin/python"))
FOLDER = Path("bench/out")
OTHER_FAULTS = ("worker", "stopped", "peer", "router")
BARS: Mapping[str, float] = {
    "requests_failed_of_moves": 0.0,
    "moves_not_proven": 0.0,
    "longest_effect_seconds": 10.0,
    "daemon_kills_not_done": 0.0,
    "requests_failed_of_daemon_kills": 0.0,
    "doubled": 0.0,
    "left_processes": 0.0,
    "longest_told_seconds": 10.0,
    "false_switched": 0.0,
    "honest_not_proven": 0.0,
    "partition_told_seconds": 10.0,
    "partition_back_seconds": 10.0,
    "partition_others_called_down": 0.0,
    "partition_requests_failed": 0.0,
    "partition_restarts": 0.0,
    "partition_gpu_seconds_lost": 0.01,
    "partition_increase_off_ratio": 0.05,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, print and write what was found; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench.faults_control", description=__doc__)
    parser.add_argument("--seed", default="1", help="what faults and lies are drawn by")
    parser.add_argument("--moves", type=int, default=100, help="so many moves under load")
    parser.add_argument("--kills", type=int, default=50, help="so many kills of the daemon")
    parser.add_argument("--others", type=int, default=3, help="so many of each other fault")
    parser.add_argument("--lies", type=int, default=500, help="so many engines that lie")
    parser.add_argument("--partitions", type=int, default=20, help="so many nodes cut off")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    processes.adopt_orphans()
    processes.end_with_parent()
    began = time.monotonic()
    found: dict[str, Any] = {"lies": lied(options.lies, options.seed)}
    if options.moves:
        found["moves"] = moved(options.moves, ROUTER)
        sys.stderr.write(f"{found['moves']}\n")
    counts = {"daemon": options.kills, **dict.fromkeys(OTHER_FAULTS, options.others)}
    if any(counts.values()):
        found["faults"] = killed(counts, ROUTER, options.seed)
        sys.stderr.write(f"{found['faults']}\n")
    if options.partitions:
        found["partitions"] = cut_off(options.partitions, options.seed)
        sys.stderr.write(f"{found['partitions']}\n")
    return finish(
        FOLDER / "faults-control.json",
        figures(found),
        BARS,
        as_json=options.json,
        seed=options.seed,
        minutes=(time.monotonic() - began) / 60,
        found=found,
    )


def figures(found: Mapping[str, Any]) -> dict[str, float | None]:
    """The figures that there are bars for, and those beside them; None where a part was not run."""
    moves, faults = found.get("moves", {}), found.get("faults", {})
    kinds = faults.get("faults", {})
    kills = kinds.get("daemon")
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
        "daemon_kills": kills["count"] if kills else None,
        "daemon_kills_not_done": _not_done(kills) if kills else None,
        "requests_failed_of_daemon_kills": kills["requests_failed"] if kills else None,
        "other_faults": sum(kinds[kind]["count"] for kind in OTHER_FAULTS) if kinds else None,
        "doubled": sum(kind["doubled"] for kind in kinds.values()) if kinds else None,
        "left_processes": faults.get("left_processes"),
        "longest_told_seconds": (
            max(kind["longest_told_seconds"] for kind in kinds.values()) if kinds else None
        ),
        "lying_engines": found["lies"]["lying_engines"],
        "false_switched": found["lies"]["false_switched"],
        "honest_not_proven": found["lies"]["honest_not_proven"],
        **_partitions(found.get("partitions", {})),
    }


def _partitions(cuts: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        "partitions": cuts.get("partitions"),
        "partition_told_seconds": cuts.get("longest_told_seconds"),
        "partition_back_seconds": cuts.get("longest_back_seconds"),
        "partition_others_called_down": cuts.get("others_called_down"),
        "partition_requests": cuts.get("requests"),
        "partition_requests_failed": cuts.get("requests_failed"),
        "partition_restarts": cuts.get("restarts"),
        "partition_gpu_seconds": cuts.get("gpu_seconds"),
        "partition_gpu_seconds_lost": cuts.get("gpu_seconds_lost"),
        "partition_increase_off_ratio": cuts.get("increase_off_ratio"),
    }


def _not_done(kills: Mapping[str, Any]) -> float:
    return float(kills["count"] - kills["outcomes"].get("done", 0))


if __name__ == "__main__":
    sys.exit(main())
