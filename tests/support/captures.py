"""Step records of real engines, kept as files: one JSON object a line, gzipped.

`t` is when the record was made (seconds, CLOCK_MONOTONIC), `it` its counts [number, context
requests, context tokens, generation requests, generation tokens, elapsed ms]; `held` the step's
nanoseconds as the worker itself stamped them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from disagg_exporter.model import Step
from disagg_exporter.steps.messages import ControlMessage
from support.accounting import captured_steps, ns
from support.vllm_pair import TruthStep


def write_capture(
    path: Path, records: Sequence[ControlMessage], truth: Sequence[TruthStep]
) -> None:
    """Write the records of an engine with the truth of each; both in the order of steps."""
    if len(records) != len(truth):
        raise ValueError(f"{len(records)} records of {len(truth)} steps")
    with gzip.GzipFile(path, "wb", mtime=0) as out:
        out.write(b'{"init": 0, "role": "mixed"}\n')
        for message, stamped in zip(records, truth, strict=True):
            if message.step is not None:
                out.write(json.dumps(_row(message.step, stamped)).encode() + b"\n")


def read_capture(path: Path) -> list[tuple[Step, int]]:
    """Read records and the truth of each, in order; the totals are not kept."""
    rows = captured_steps(path)
    return [(_step(row), int(row["held"])) for row in rows]


def _row(step: Step, stamped: TruthStep) -> dict[str, object]:
    contexts = (step.context_requests, step.context_tokens)
    generations = (step.generation_requests, step.generation_tokens)
    return {
        "t": step.t_ns / 1e9,
        "run": step.running,
        "wait": step.waiting,
        "skip": step.deferred,
        "kv": step.kv_usage_ratio,
        "it": [step.sequence, *contexts, *generations, step.elapsed_ns / 1e6],
        "computed": step.computed_tokens,
        "cached": step.cached_tokens,
        "ext": step.external_tokens,
        "held": stamped.held_ns,
    }


def counts_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the counts that every capture has of a row, by their names in `Step`."""
    _, contexts, context_tokens, generations, generated, _ = row["it"]
    return {
        "context_requests": contexts,
        "context_tokens": context_tokens,
        "generation_requests": generations,
        "generation_tokens": generated,
        "computed_tokens": row["computed"],
        "external_tokens": row["ext"],
        "running": row["run"],
        "waiting": row["wait"],
        "deferred": row["skip"],
    }


def elapsed_ns(row: dict[str, Any]) -> int:
    """Return how long a row's step took."""
    milliseconds: float = row["it"][-1]
    return round(milliseconds * 1e6)


def _step(row: dict[str, Any]) -> Step:
    return Step(
        t_ns=ns(row["t"]),
        elapsed_ns=elapsed_ns(row),
        sequence=row["it"][0],
        cached_tokens=row["cached"],
        kv_usage_ratio=row["kv"],
        **counts_of(row),
    )
