"""The simulator against three real runs: the same requests at the same times.

Prices are the shipped tables of measured layers, the link's figures those of a separately measured
all-reduce (`engine/links.py`), the host's time before a step the simulator's default: nothing is
fitted to the runs. Peer: LLMServingSim's own simulation of them, from the same layer times.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from bench.real.replay import ServedRequest, replay

from disagg_cluster.simulator.engine.batch import Outcome, SchedulerLimits
from disagg_cluster.simulator.engine.engine import Engine
from disagg_cluster.simulator.engine.hardware import (
    LLAMA_8B,
    QWEN3_30B_A3B,
    QWEN3_32B,
    RTX_PRO_6000,
    Model,
)
from disagg_cluster.simulator.engine.lockstep import LockstepRanks
from disagg_cluster.simulator.engine.roofline import CostModel, Roofline
from disagg_cluster.simulator.engine.scheduler import Scheduler
from disagg_cluster.simulator.prices.expert_parallel import ExpertParallelCosts
from disagg_cluster.simulator.prices.shipped import table_costs

DATA = Path(__file__).parents[2] / "tests/data/real-runs"
# The engines' settings; the cache is larger than the runs ever use.
LIMITS = SchedulerLimits(kv_blocks=25_000, running_requests=128, step_tokens=2048)


@dataclass(frozen=True, slots=True)
class RealRun:
    """A run, the bars for the means of its simulation, and the peer's errors."""

    name: str
    file: str
    model: Model
    ttft_bar_ratio: float
    tpot_bar_ratio: float
    peer_ttft_ratio: float
    peer_tpot_ratio: float
    tensor_parallel: int = 1
    ranks: int = 1


RUNS = (
    RealRun("8B", "llama-3.1-8b", LLAMA_8B, 0.05, 0.05, -0.040, -0.010),
    RealRun("32B TP2", "qwen3-32b", QWEN3_32B, 0.10, 0.10, 0.013, 0.008, tensor_parallel=2),
    RealRun("30B-A3B DP2 EP2", "qwen3-30b-a3b", QWEN3_30B_A3B, 0.10, 0.05, -0.136, -0.017, ranks=2),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run beside its simulation, means in seconds."""

    run: RealRun
    ttft_real_seconds: float
    ttft_seconds: float
    tpot_real_seconds: float
    tpot_seconds: float

    @property
    def ttft_error(self) -> float:
        """Simulated over real, less one."""
        return self.ttft_seconds / self.ttft_real_seconds - 1

    @property
    def tpot_error(self) -> float:
        """Simulated over real, less one."""
        return self.tpot_seconds / self.tpot_real_seconds - 1

    @property
    def met(self) -> bool:
        """Whether both bars are met."""
        run = self.run
        return (
            abs(self.ttft_error) <= run.ttft_bar_ratio
            and abs(self.tpot_error) <= run.tpot_bar_ratio
        )


def compare(run: RealRun, costs: CostModel | None = None) -> Comparison:
    """Simulate a run; `costs` replace the shipped table, for a run without ranks."""
    real = read_run(run)
    simulated = _ranks(run, real) if run.ranks > 1 else _engine(run, real, costs)
    return Comparison(
        run,
        mean(each.ttft_seconds for each in real),
        mean(each.ttft_seconds for each in simulated),
        mean(each.tpot_seconds for each in real),
        mean(each.tpot_seconds for each in simulated),
    )


def read_run(run: RealRun) -> list[ServedRequest]:
    """Return the requests of a run, in the order in which they were queued."""
    with (DATA / f"{run.file}.csv").open(encoding="utf-8") as lines:
        return [
            ServedRequest(
                int(row["prompt_tokens"]),
                int(row["output_tokens"]),
                *(float(row[name]) for name in ("queued_s", "first_token_s", "last_token_s")),
            )
            for row in csv.DictReader(lines)
        ]


def simulator_table() -> tuple[str, bool]:
    """Return the comparison as text, and whether all bars are met."""
    lines = [
        f"{'simulator against vLLM 0.19.0, means':38} {'real':>9} {'simulated':>10} {'error':>7} "
        f"{'bar':>6} {'peer':>7} {'data sheet':>11}"
    ]
    met = True
    for run in RUNS:
        ours = compare(run)
        met = met and ours.met
        sheet = (
            compare(run, Roofline(RTX_PRO_6000, run.model, run.tensor_parallel))
            if (run.ranks == 1)
            else None
        )
        lines.append(
            f"{run.name + ', time to first token':38} {ours.ttft_real_seconds:7.2f} s "
            f"{ours.ttft_seconds:8.2f} s {ours.ttft_error:+7.1%} {run.ttft_bar_ratio:6.0%} "
            f"{run.peer_ttft_ratio:+7.1%} {_percent(sheet and sheet.ttft_error):>11}"
        )
        lines.append(
            f"{run.name + ', time per output token':38} {ours.tpot_real_seconds * 1e3:6.1f} ms "
            f"{ours.tpot_seconds * 1e3:7.1f} ms {ours.tpot_error:+7.1%} {run.tpot_bar_ratio:6.0%} "
            f"{run.peer_tpot_ratio:+7.1%} {_percent(sheet and sheet.tpot_error):>11}"
        )
    return "\n".join(lines), met


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"


def _engine(
    run: RealRun, real: list[ServedRequest], costs: CostModel | None
) -> list[ServedRequest]:
    scheduler = Scheduler(LIMITS, prefix_caching=False)
    costs = costs or table_costs(RTX_PRO_6000, run.model, run.tensor_parallel)
    engine = Engine(scheduler, costs, longest_run=1)

    def step(now_ns: int) -> list[Outcome]:
        planned = engine.begin(now_ns)
        outcome = None if planned is None else engine.settle(planned.end_ns(1))
        return [] if outcome is None else [outcome]

    return replay(real, scheduler.submit, step)


def _ranks(run: RealRun, real: list[ServedRequest]) -> list[ServedRequest]:
    ranks = [Scheduler(LIMITS, prefix_caching=False) for _ in range(run.ranks)]
    costs = ExpertParallelCosts(table_costs(RTX_PRO_6000, run.model, 1))
    group = LockstepRanks(ranks, costs)
    return replay(real, group.submit, group.step)


def main() -> int:
    """Print the comparison; 1 if a bar is missed."""
    table, met = simulator_table()
    sys.stdout.write(f"{table}\nbars: {'met' if met else 'MISSED'}\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
