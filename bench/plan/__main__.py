"""The quality of our GPU plans beside other rules: `make bench-plan`.

Ten made-up days of three models on one fleet of 128 H100s, each with a shifting load, are simulated
under each rule. The outcome is decided by a simulation of single requests that shares no formula
with the planner (bench/plan/truth.py); step times are those of the shipped price tables. It takes
some minutes on two cores; `--days 2` simulates fewer days.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench.plan.comparison import BARS, Found, best_of, figures_of, live
from bench.plan.days import MINUTES
from bench.report import finish

REPORT = Path("bench/out/plan.json")


def main() -> int:
    """Simulate the days, print, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--minutes", type=int, default=MINUTES, help="of each day; multiple of 5")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    # Forecasts are small matrices, for which threads only cost time.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    total: Found = {}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        days = pool.map(partial(live, minutes=asked.minutes), range(asked.days))
        for number, found in enumerate(days, 1):
            sys.stderr.write(f"{number} of {asked.days} days\n")
            for name, outcome in found.items():
                total[name] = total[name] + outcome if name in total else outcome
    best = best_of(total)
    figures = figures_of(best, total)
    return finish(
        REPORT,
        figures,
        BARS,
        lambda figures, met: _table(total, best, figures, met),
        as_json=asked.json,
        days=asked.days,
        minutes=asked.minutes,
    )


def _table(
    total: Found,
    best: Mapping[str, str],
    figures: Mapping[str, float | None],
    met: Mapping[str, bool],
) -> str:
    lines = [f"{'':30}{'GPU-hours':>10}{'minutes over':>14}{'attainment':>12}"]
    for name, outcome in total.items():
        mark = " *" if name in best.values() else ""
        lines.append(
            f"{name:30}{outcome.gpu_hours:10.0f}{outcome.minutes_over:14d}"
            f"{outcome.attainment * 100:11.2f} %{mark}"
        )
    lines.append("* the best of its rule")
    for name, bar in BARS.items():
        verdict = "met" if met[name] else "MISSED"
        lines.append(f"{name:30}{figures[name]:10.2f}{bar:14g}  {verdict}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
