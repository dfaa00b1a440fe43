"""The gain of moving engines between roles: `make bench-rebalance`.

Twelve made-up loads of one model on a node of eight H100s, and fourteen of two kinds of requests at
once, are simulated under the rebalancer, under every fixed split and under the rules of two papers,
and four loads of 24 hours of noise. The outcome is decided by bench-plan's simulation of single
requests, which shares no formula with the planner. It takes some five minutes on two cores;
`--loads 2 --mixed 0` simulates fewer.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

from bench.plan.days import MINUTES
from bench.rebalance.comparison import (
    ACT,
    BARS,
    BEGUN,
    HETERO,
    TOKENS,
    Lived,
    best_of,
    figures_of,
    live,
    live_constant,
    live_mixed,
    totals,
)
from bench.report import finish

REPORT = Path("bench/out/rebalance.json")
FIRST_SEED = 50
"""Seeds 0 to 9 were used for development, and those from 20 to 41 were in view."""


def main() -> int:
    """Simulate the loads, print, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--loads", type=int, default=12)
    parser.add_argument("--mixed", type=int, default=14, help="loads of two kinds of requests")
    parser.add_argument("--minutes", type=int, default=MINUTES // 2, help="of each; multiple of 5")
    parser.add_argument("--constant", type=int, default=4, help="loads of 24 hours of noise")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # Forecasts are small matrices, for which threads only cost time.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    first = options.first_seed
    seeds = {
        partial(live, minutes=options.minutes): range(first, first + options.loads),
        partial(live_mixed, minutes=options.minutes): range(first, first + options.mixed),
        partial(live_constant, minutes=MINUTES): range(first, first + options.constant),
    }
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        made = [[pool.submit(of, seed) for seed in of_kind] for of, of_kind in seeds.items()]
        _report_progress(list(chain.from_iterable(made)))
        lived, mixed, constant = ([each.result() for each in of] for of in made)
    lived += mixed
    figures = figures_of(lived, constant)
    return finish(
        REPORT,
        figures,
        BARS,
        lambda figures, met: _table(lived, figures, met),
        as_json=options.json,
        first_seed=first,
        loads=options.loads,
        mixed=options.mixed,
        minutes=options.minutes,
    )


def _report_progress(loads: Sequence[Future[Lived]]) -> None:
    """Print the outcome of each load, and about how long the others take."""
    began = time.monotonic()
    for done, future in enumerate(as_completed(loads), 1):
        each = future.result()
        left = (time.monotonic() - began) / done * (len(loads) - done)
        sys.stderr.write(
            f"[{done}/{len(loads)}, about {left / 60:.1f} min left] {each.seed} {each.kind}: "
            f"{len(each.moves)} moves, {dict(each.minutes_over)}\n"
        )


def _table(
    lived: Sequence[Lived], figures: Mapping[str, float | None], met: Mapping[str, bool]
) -> str:
    total = totals(lived)
    rivals = [best_of(total, rule)[0] for rule in (HETERO, TOKENS)]
    lines = [
        f"{'':6}{'':32}{'act':>6}{'moves':>7}{'4+4':>6}{'best':>6}  split{'begun':>6}"
        f"{rivals[0]:>26}{rivals[1]:>32}"
    ]
    for each in lived:
        name, best = each.best_static
        over = each.minutes_over
        lines.append(
            f"{each.seed:<6}{each.kind:32}{over[ACT]:6}{len(each.moves):7}{over['static 4+4']:6}"
            f"{best:6}  {name.removeprefix('static '):5}{over[BEGUN]:6}"
            f"{over[rivals[0]]:26}{over[rivals[1]]:32}"
        )
    lines.append("minutes over target of all loads")
    lines += [f"  {name:36}{of:7}" for name, of in sorted(total.items(), key=lambda each: each[1])]
    for name, value in figures.items():
        bar = "" if name not in BARS else f"{BARS[name]:10g}  {'met' if met[name] else 'MISSED'}"
        lines.append(f"{name:40}{value:10.2f}{bar}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
