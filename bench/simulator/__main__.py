"""How long a simulated day takes: `make bench-simulator`.

Eight engines, one request a second in the mean, 1.8 by day to 0.45 by night. The bar is one day in
60 s of CPU, reported in runs of steps (`BRIEF`), accounting not included. Beside it an hour step by
step, as engines report it, and the same hours through the accounting.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.report import processor

from disagg_cluster.simulator.cluster.event_queue import Event
from disagg_cluster.simulator.cluster.spec import BRIEF, ClusterSpec, Reporting, disaggregated
from disagg_cluster.simulator.load import Lengths, Mix, Shifting
from disagg_cluster.simulator.simulation import Simulation, add_devices, drive
from disagg_exporter.accounting import Ledger
from disagg_exporter.steps.messages import ControlMessage

BAR_SECONDS = 60.0
DAY_HOURS = 24.0
REPORT = Path("bench/out/simulator.json")


@dataclass(frozen=True, slots=True)
class Result:
    """One simulated stretch and its cost."""

    what: str
    simulated_hours: float
    wall_seconds: float
    cpu_seconds: float
    requests: int
    records: int
    events: int
    actions: int

    @property
    def speed(self) -> float:
        """The ratio of simulated time to CPU time."""
        return self.simulated_hours * 3600 / self.cpu_seconds


def simulation(reporting: Reporting) -> Simulation:
    """Return three prefill and five decode engines of an 8B model on H100s, and a day's load."""
    by_day, by_night = Mix(1.8, 1155, 211), Mix(0.45, 1155, 211)
    return Simulation(
        ClusterSpec(disaggregated(3, 5)),
        Shifting(by_day, by_night, period_seconds=86_400),
        lengths=Lengths(prompt_spread=0.8, output_spread=0.8, reuse_ratio=0.3),
        reporting=reporting,
        seed=1,
    )


def measure(
    what: str,
    hours: float,
    reporting: Reporting,
    run: Callable[[Simulation, int, Counter[str]], None],
) -> Result:
    """Run one simulation and return its cost."""
    simulated, counts = simulation(reporting), Counter[str]()
    wall, cpu = time.perf_counter(), time.process_time()
    run(simulated, round(hours * 3600 * 1e9), counts)
    return Result(
        what=what,
        simulated_hours=hours,
        wall_seconds=round(time.perf_counter() - wall, 2),
        cpu_seconds=round(time.process_time() - cpu, 2),
        requests=counts["RequestEnded"],
        records=counts[ControlMessage.__name__],
        events=counts.total(),
        actions=simulated.actions,
    )


def listen(simulated: Simulation, until_ns: int, counts: Counter[str]) -> None:
    """Receive every event and ignore it."""
    for _, event in simulated.events(until_ns):
        counts[type(event).__name__] += 1


def account(simulated: Simulation, until_ns: int, counts: Counter[str]) -> None:
    """Give every event to the node's ledger."""
    ledgers = {node: Ledger() for node in simulated.nodes}
    add_devices(ledgers, simulated)

    def watch(_: int, event: Event) -> None:
        counts[type(event).__name__] += 1

    drive(ledgers, simulated, until_ns, watch=watch)


def table(results: list[Result]) -> str:
    """Return the results as a table."""
    lines = [
        f"{'':34} {'wall s':>7} {'CPU s':>7} {'x real time':>12} {'requests':>9} "
        f"{'messages':>9} {'events':>9}"
    ]
    lines += [
        f"{result.what:34} {result.wall_seconds:7.1f} {result.cpu_seconds:7.1f} "
        f"{result.speed:12,.0f} {result.requests:9,} {result.records:9,} {result.events:9,}"
        for result in results
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure, print, write the report; 1 if the bar is missed."""
    argparse.ArgumentParser(prog="make bench-simulator", description=__doc__).parse_args()
    results = [
        measure("a day, in runs of steps", DAY_HOURS, BRIEF, listen),
        measure("an hour, in runs of steps", 1.0, BRIEF, listen),
        measure("the same hour, accounted for", 1.0, BRIEF, account),
        measure("an hour, step by step", 1.0, Reporting(), listen),
        measure("the same hour, accounted for", 1.0, Reporting(), account),
    ]
    day = results[0]
    met = day.cpu_seconds <= BAR_SECONDS
    verdict = f"bar: a day in {BAR_SECONDS:.0f} s of CPU: {'met' if met else 'MISSED'}"
    sys.stdout.write(f"{table(results)}\n{verdict}\n")
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "processor": processor(),
        "python": platform.python_version(),
        "bar_cpu_seconds": BAR_SECONDS,
        "met": met,
        "results": [asdict(result) for result in results],
    }
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
