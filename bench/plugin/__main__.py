"""What our plugin costs a vLLM engine: `make bench-plugin`.

Two real vLLM servers on the CPU serve the same load in turn (A B B A …): one as the daemon starts
it, with `--enable-logging-iteration-details`, our plugin and somebody who listens to its steps;
one without any of it. CPU is the kernel's account of all processes of the server, per token it
generated; the bound is the upper end of a one-sided 95 % interval of the mean ratio over rounds.
What a call of record() takes is thread CPU time, read inside the loaded server by a second plugin.

Then sixteen programs that send records as the plugin does, 625 a second each, into one daemon.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.plugin.engines import CLIENTS, Server, listening, running_server
from bench.plugin.flood import flooded
from bench.report import finish

from disagg_cluster.assets import engine_side_folder
from disagg_cluster.demo import tiny_model

PYTHON = Path(".venv-vllm/bin/python")
STOPWATCH = Path(__file__).with_name("stopwatch")
BARS = {
    "record_median_microseconds": 30.0,
    "record_p99_microseconds": 200.0,
    "record_share_of_step_percent": 1.0,
    "cpu_per_token_ratio_upper_95": 1.03,
    "flood_lost_records_percent": 0.1,
    "flood_lost_seconds_percent": 0.01,
}
REPORT = Path("bench/out/plugin.json")
REQUESTS = 3 * CLIENTS
# Student's t, one-sided 95 %, by degrees of freedom.
_T95 = {5: 2.015, 7: 1.895, 9: 1.833, 11: 1.796, 15: 1.753, 19: 1.729}


def main() -> int:
    """Measure, print and write the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, choices=[n + 1 for n in _T95])
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    if not PYTHON.exists():
        raise SystemExit("there is no .venv-vllm; `make vllm-environment` makes it")
    with tempfile.TemporaryDirectory(prefix="bp-") as name:
        figures = _with_vllm(Path(name), options.rounds) | flooded()
    how = {"rounds": options.rounds}
    return finish(REPORT, figures, BARS, _table, as_json=options.json, **how)


def _with_vllm(folder: Path, rounds: int) -> dict[str, float]:
    model, times = folder / "model", folder / "times"
    size = ("--hidden", "128", "--layers", "64")
    make = [str(PYTHON), tiny_model.__file__, str(model), *size]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    search_path = f"{engine_side_folder()}{os.pathsep}{STOPWATCH}"
    more = {
        "PYTHONPATH": search_path,
        "DISAGG_STEPS_SOCKET": str(folder / "steps"),
        "DISAGG_STOPWATCH_FILE": str(times),
    }
    details = ("--enable-logging-iteration-details",)
    with (
        listening(folder / "steps"),
        running_server(PYTHON, model, folder / "with.log", details, more) as ours,
        running_server(PYTHON, model, folder / "without.log", (), {}) as plain,
    ):
        for server in (ours, plain):
            server.serve(2 * CLIENTS)
        times.unlink(missing_ok=True)
        ratios = [_round(ours, plain) for _ in range(rounds)]
    calls = [tuple(map(int, line.split())) for line in times.read_text().splitlines()]
    spent = [call for call, _ in calls]
    error = statistics.stdev(ratios) / math.sqrt(rounds)
    return {
        "record_calls": len(calls),
        "record_median_microseconds": statistics.median(spent) / 1e3,
        "record_p99_microseconds": statistics.quantiles(spent, n=100)[-1] / 1e3,
        "step_median_milliseconds": statistics.median(step for _, step in calls) / 1e6,
        "record_share_of_step_percent": 100 * sum(spent) / sum(step for _, step in calls),
        "cpu_per_token_ratio": statistics.mean(ratios),
        "cpu_per_token_ratio_upper_95": statistics.mean(ratios) + _T95[rounds - 1] * error,
    }


def _round(ours: Server, plain: Server) -> float:
    """A B B A: CPU per token with the plugin, divided by that without."""
    spent = {ours: 0.0, plain: 0.0}
    tokens = {ours: 0, plain: 0}
    for server in (ours, plain, plain, ours):
        before = server.cpu_seconds()
        tokens[server] += server.serve(REQUESTS)
        spent[server] += server.cpu_seconds() - before
    return (spent[ours] / tokens[ours]) / (spent[plain] / tokens[plain])


def _table(figures: dict[str, Any], met: dict[str, bool]) -> str:
    lines = [f"{'':<36}{'measured':>10}{'bar':>8}"]
    for key, value in figures.items():
        verdict = "" if key not in BARS else "met" if met[key] else "MISSED"
        bar = f"{BARS[key]:>8g}" if key in BARS else " " * 8
        lines.append(f"{key:<36}{value:>10.3f}{bar}  {verdict}".rstrip())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
