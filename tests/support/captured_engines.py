"""Engines whose steps and pages were captured from real vLLM 0.32, on busy cores."""

from __future__ import annotations

from pathlib import Path

from disagg_exporter.model import Role, Step
from support.accounting import SECOND_NS, NodeAccounting, StepReporter, captured_steps

CAPTURES = Path(__file__).parents[1] / "data" / "vllm-0.32.0"


def replay(name: str, role: Role) -> tuple[NodeAccounting, float, float]:
    """Feed a capture in real order with 1 Hz heartbeats; return accounting, recorded time, end."""
    rows = captured_steps(CAPTURES / f"{name}.steps.jsonl.gz")
    first, accounting, reporter = float(rows[0]["t"]) - 2, NodeAccounting(), StepReporter()  # type: ignore[arg-type]
    accounting.engine(role=role)
    accounting.beat(reporter, 0)
    recorded, beat = 0.0, 1.0
    for row in rows:
        t = float(row["t"]) - first  # type: ignore[arg-type]
        while beat < t:
            accounting.beat(reporter, beat)
            accounting.advance(beat)
            beat += 1
        _, contexts, context_tokens, generations, generated, elapsed_ms = row["it"]  # type: ignore[misc]
        step: Step = reporter.step(
            t,
            elapsed_ms / 1000,
            context_requests=contexts,
            context_tokens=context_tokens,
            generation_requests=generations,
            generation_tokens=generated,
            computed_tokens=row["computed"],
            external_tokens=row["ext"],
            running=row["run"],
            waiting=row["wait"],
            deferred=row["skip"],
        )
        accounting.step(reporter, step)
        recorded += step.elapsed_ns / SECOND_NS
    end = beat + 90
    while beat < end:
        accounting.beat(reporter, beat)
        accounting.advance(beat)
        beat += 1
    return accounting, recorded, beat


def opencost_input_share(pair: str) -> float:
    """Return what pkg/inferencecost of OpenCost makes of a pair's pages.

    Seconds of prompts, over these and the seconds *per token* of finished requests.
    """
    names = "request_prefill_time_seconds_sum", "request_time_per_output_token_seconds_sum"
    sums = dict.fromkeys(names, 0.0)
    for role in ("prefill", "decode"):
        for line in (CAPTURES / f"{pair}_{role}.prom").read_text().splitlines():
            for name in names:
                if line.startswith(f"vllm:{name}{{"):
                    sums[name] += float(line.rsplit(" ", 1)[1])
    return sums[names[0]] / sum(sums.values())
