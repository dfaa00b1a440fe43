"""Engines whose steps and pages were captured from real vLLM 0.32, on busy cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from disagg_exporter.model import Role, Step
from support.accounting import SECOND_NS, NodeAccounting, StepReporter, captured_steps
from support.captures import counts_of, elapsed_ns

CAPTURES = Path(__file__).parents[1] / "data" / "vllm-0.32.0"


def told(name: str, reporter: StepReporter, each_second: Callable[[int], object]) -> Iterator[Step]:
    """Yield the steps of a capture in order of arrival, the first at two seconds.

    `each_second` is called with every whole second before the first step after it.
    """
    rows = captured_steps(CAPTURES / f"{name}.steps.jsonl.gz")
    first, passed = rows[0]["t"] - 2, 0
    for row in rows:
        t = row["t"] - first
        while passed + 1 < t:
            passed += 1
            each_second(passed)
        yield reporter.step(t, elapsed_ns(row) / SECOND_NS, **counts_of(row))


def replay(name: str, role: Role) -> tuple[NodeAccounting, float, float]:
    """Replay a capture in order with 1 Hz heartbeats; return accounting, recorded time, end."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=role)
    accounting.beat(reporter, 0)
    recorded = now = 0.0

    def beat(second: float) -> None:
        nonlocal now
        now = second
        accounting.beat(reporter, now)
        accounting.advance(now)

    for step in told(name, reporter, beat):
        accounting.step(reporter, step)
        recorded += step.elapsed_ns / SECOND_NS
    for _ in range(90):
        beat(now + 1)
    return accounting, recorded, now + 1


def opencost_input_share(pair: str) -> float:
    """Return input's share by OpenCost's pkg/inferencecost for a pair's pages.

    It is the seconds of prompts over these plus the seconds *per token* of finished requests.
    """
    names = "request_prefill_time_seconds_sum", "request_time_per_output_token_seconds_sum"
    sums = dict.fromkeys(names, 0.0)
    for role in ("prefill", "decode"):
        for line in (CAPTURES / f"{pair}_{role}.prom").read_text().splitlines():
            for name in names:
                if line.startswith(f"vllm:{name}{{"):
                    sums[name] += float(line.rsplit(" ", 1)[1])
    return sums[names[0]] / sum(sums.values())
