"""The error of the planner's capacities against simulated pools: `make bench-pools`.

Pools of prefill, decode and mixed engines in the discrete simulator (batches, queues, chunks,
caches, preemption); bisection finds the largest load at which 95 % of the requests are within the
targets. Beside it, what `planner/capacity` computes from the same prices. Some pools are chosen,
others drawn, and no constant of the formulas was fitted to either. Then learned capacities, beside
those by true prices.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from bench.pools.cases import chosen_cases, drawn_cases
from bench.pools.learned import learned_rows
from bench.pools.simulated import PoolCase, largest_load
from bench.report import finish

from disagg_cluster.planner.capacity.decode_pool import decode_capacity
from disagg_cluster.planner.capacity.mixed_pool import mixed_capacity
from disagg_cluster.planner.capacity.pool_capacity import PoolCapacity, UndecidedCapacity
from disagg_cluster.planner.capacity.prefill_pool import prefill_capacity
from disagg_cluster.planner.capacity.priced_costs import priced_costs
from disagg_cluster.simulator.cluster.network import Policy
from disagg_exporter.model import Role

SEED = 7
DRAWN = 18
BARS = {
    "prefill_median_error_percent": 8.0,
    "decode_median_error_percent": 8.0,
    "mixed_median_error_percent": 8.0,
    "prefill_learned_most_promised_percent": 10.0,
    "decode_learned_most_promised_percent": 10.0,
}
REPORT = Path("bench/out/pools.json")
_CAPACITIES: Mapping[Role, Callable[..., PoolCapacity | UndecidedCapacity]] = {
    Role.PREFILL: prefill_capacity,
    Role.DECODE: decode_capacity,
    Role.MIXED: mixed_capacity,
}


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool: requests a second by the formula and by the simulator."""

    name: str
    role: str
    bound: str
    formula: float
    simulated: float

    @property
    def error_percent(self) -> float:
        """Return by how much the formula promises too much, in percent."""
        return (self.formula / self.simulated - 1) * 100


def main() -> int:
    """Compare, print and write the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--drawn", type=int, default=DRAWN, help="how many pools are drawn")
    parser.add_argument("--seed", type=int, default=SEED, help="the seed of the drawn pools")
    parser.add_argument(
        "--round-robin", action="store_true", help="simulate a router that ignores load"
    )
    options = parser.parse_args()
    cases = [*chosen_cases(), *drawn_cases(options.drawn, options.seed)]
    if options.round_robin:
        cases = [replace(case, policy=Policy.ROUND_ROBIN) for case in cases]
    rows = []
    with ProcessPoolExecutor(os.cpu_count()) as executor:
        for row in executor.map(compared, cases):
            rows.append(row)
            sys.stderr.write(
                f"{row.role:8} {row.name:45} {row.bound:12} "
                f"{row.formula:8.2f} {row.simulated:8.2f} {row.error_percent:+6.1f} %\n"
            )
    figures: dict[str, float | None] = {}
    for role in _CAPACITIES:
        errors = [row.error_percent for row in rows if row.role == role]
        figures[f"{role}_median_error_percent"] = median(map(abs, errors))
        figures[f"{role}_worst_error_percent"] = max(errors, key=abs)
    learned = list(learned_rows())
    for role in (Role.PREFILL, Role.DECODE):
        errors = [each.error_percent for each in learned if each.role == role]
        figures[f"{role}_learned_median_error_percent"] = median(map(abs, errors))
        figures[f"{role}_learned_most_promised_percent"] = max(errors)
    policy = Policy.ROUND_ROBIN if options.round_robin else Policy.LEAST_LOADED
    how = {"seed": options.seed, "policy": policy, "rows": [asdict(row) for row in rows]}
    how["learned"] = [each._asdict() for each in learned]
    return finish(REPORT, figures, BARS, as_json=options.json, **how)


def compared(case: PoolCase) -> PoolRow:
    """Return the row of one pool."""
    costs = priced_costs(case.gpu, case.model, case.gpus)
    found = _CAPACITIES[case.role](costs, case.mix, case.targets, case.engines)
    if isinstance(found, UndecidedCapacity):
        raise SystemExit(f"{case.name}: {found.reason}")
    load = found.requests_per_second
    return PoolRow(
        case.name, str(case.role), found.bound, load, largest_load(case, max(load, 0.01))
    )


if __name__ == "__main__":
    sys.exit(main())
