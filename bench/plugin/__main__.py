"""The cost of our plugin to a vLLM engine: `make bench-plugin`.

A real vLLM server on the CPU answers requests while everything of ours in it is switched on and off
twice a second: the plugin, the iteration details, vLLM's log line for each of them and our filter
for that. So neither other work on the machine nor differences between processes count as our cost.

CPU is the kernel's account of all processes of the server, per generated token, in stretches of
sixteen steps without a prompt. Stretches are paired, on and off in a random order; a pair's figure
is on / off. The bound is the upper end of a one-sided 95 % interval (Student's t) of the geometric
mean over all pairs. Single calls are timed in thread CPU, inside the loaded server.

Then sixteen programs send records as the plugin does, 625 a second each, into one daemon.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from bench.plugin.engines import CLIENTS, listening, running_server
from bench.plugin.flood import flooded
from bench.report import finish
from scipy import stats

from disagg_cluster.demo.real_vllm import tiny_model
from disagg_cluster.host.files.package_data import engine_side_folder

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
# The same as the stopwatch's.
STRETCH_STEPS = 16
REPORT = Path("bench/out/plugin.json")


def main() -> int:
    """Measure, print and write the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waves", type=int, default=12, help="each 4 requests of 900 tokens")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    if not PYTHON.exists():
        raise SystemExit("there is no .venv-vllm; `make vllm-environment` makes it")
    with tempfile.TemporaryDirectory(prefix="bp-") as name:
        figures = _with_vllm(Path(name), options.waves) | flooded()
    how = {"waves": options.waves}
    return finish(REPORT, figures, BARS, as_json=options.json, **how)


def _with_vllm(folder: Path, waves: int) -> dict[str, float]:
    model, switch = folder / "model", folder / "switch"
    stretches, times = folder / "stretches", folder / "times"
    size = ("--hidden", "128", "--layers", "64")
    make = [str(PYTHON), tiny_model.__file__, str(model), *size]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    switch.write_bytes(b"\1")
    more = {
        "PYTHONPATH": f"{engine_side_folder()}{os.pathsep}{STOPWATCH}",
        "DISAGG_STEPS_SOCKET": str(folder / "steps"),
        "DISAGG_BENCH_SWITCH": str(switch),
        "DISAGG_BENCH_STRETCHES": str(stretches),
        "DISAGG_BENCH_TIMES": str(times),
    }
    with (
        listening(folder / "steps"),
        running_server(PYTHON, model, folder / "log", more) as server,
    ):
        server.serve(waves * CLIENTS)
    return _of_calls(times) | _of_stretches(stretches)


def _of_stretches(stretches: Path) -> dict[str, float]:
    per_token: dict[int, dict[int, float]] = defaultdict(dict)
    ours_ns = 0
    for line in stretches.read_text().splitlines():
        pair, on, tokens, spent_ns, ours_ns_of_stretch = map(int, line.split())
        per_token[pair][on] = spent_ns / tokens
        ours_ns += on * ours_ns_of_stretch
    # The first pair is warm-up.
    ratios = [math.log(took[1] / took[0]) for took in [*per_token.values()][1:] if len(took) == 2]
    mean = statistics.mean(ratios)
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    upper = mean + stats.t.ppf(0.95, len(ratios) - 1) * error
    return {
        "our_thread_microseconds_per_step": ours_ns / 1e3 / (len(per_token) * STRETCH_STEPS),
        "pairs": len(ratios),
        "cpu_per_token_ratio": math.exp(mean),
        "cpu_per_token_ratio_standard_error": error,
        "cpu_per_token_ratio_upper_95": math.exp(upper),
    }


def _of_calls(times: Path) -> dict[str, float]:
    spent: Mapping[str, list[int]] = defaultdict(list)
    for line in times.read_text().splitlines():
        what, nanoseconds = line.split()
        spent[what].append(int(nanoseconds))
    record, steps = spent["record"], spent["step"]
    return {
        "record_calls": len(record),
        "record_median_microseconds": statistics.median(record) / 1e3,
        "record_p99_microseconds": statistics.quantiles(record, n=100)[-1] / 1e3,
        "step_median_milliseconds": statistics.median(steps) / 1e6,
        "record_share_of_step_percent": 100 * sum(record) / sum(steps),
        "log_line_median_microseconds": statistics.median(spent["line"]) / 1e3,
        "details_median_microseconds": statistics.median(spent["details"]) / 1e3,
    }


if __name__ == "__main__":
    sys.exit(main())
