"""The error of an engine's learned capacity: `make bench-capacity`.

Simulated prefill and decode engines (priced by the tables of `disagg_cluster.simulator`, composed
of measured kernels; 10 % noise a step) under loads from nearly nothing to more than they can
serve. What `disagg_exporter.capacity` learns from three minutes of their records is compared with
the simulator's own prices without noise. The true capacity used is the load that the simulator was
given, or what it did, over the true limit.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from bench.capacity.learning import LENGTHS, SECOND_NS, STEPS_ONLY, learn_capacity
from bench.capacity.truth import knee, step_seconds, target_batch

from disagg_cluster.simulator.cluster.spec import ClusterSpec, EngineSpec, disaggregated
from disagg_cluster.simulator.engine.hardware import GPT_OSS_120B, H100, L40S, LLAMA_8B, LLAMA_70B
from disagg_cluster.simulator.engine.roofline import Noise
from disagg_cluster.simulator.load import Constant, Mix
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.capacity.curves.utilization import utilization
from disagg_exporter.model import EngineState, EngineStatus, Role, StreamKey
from disagg_exporter.steps.messages import ControlMessage, MessageKind
from disagg_exporter.steps.rows import rows_of

PROMPT_TOKENS, OUTPUT_TOKENS = 1155.0, 400.0
PREFILL_LEVELS = (0.02, 0.25, 0.5, 0.75, 1.3)
BATCHES = (2, 18, 64, 130)
TARGETS_SECONDS = (0.015, 0.05)
REPORT = Path("bench/out/capacity.json")


@dataclass(frozen=True, slots=True)
class Row:
    """One engine under one load: what was learned (None where nothing was), and the truth."""

    engine: str
    load: str
    learned: float | None
    true: float | None
    used: float | None
    true_used: float | None
    sides: str = ""
    knee_tokens: float | None = None
    true_knee_tokens: float | None = None


def main() -> int:
    """Measure, print, write the report."""
    argparse.ArgumentParser(prog="make bench-capacity", description=__doc__).parse_args()
    rows = {"prefill": list(_prefill_rows()), "decode": list(_decode_rows())}
    for phase, several in rows.items():
        sys.stdout.write(f"\n{phase}\n")
        for row in several:
            sys.stdout.write(_line(row))
    costs = _costs()
    sys.stdout.write("\n" + "".join(f"{what}: {value:.2f}\n" for what, value in costs.items()))
    report = {
        "costs": costs,
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        **{phase: [asdict(row) for row in several] for phase, several in rows.items()},
    }
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _prefill_rows() -> Iterator[Row]:
    for name, specs in ENGINES.items():
        spec = specs[0]
        tokens, rate = knee(spec, PROMPT_TOKENS, LENGTHS)
        for level in PREFILL_LEVELS:
            mix = Mix(level * rate / PROMPT_TOKENS, PROMPT_TOKENS, 4)
            known, spent_tokens = learn_capacity(specs, mix, spec.name, TARGETS_SECONDS[:1])
            limit, load = known[0].prefill, known[0].load
            yield Row(
                name,
                f"{level:.0%} of the knee's rate",
                limit and limit.tokens_per_second,
                rate,
                load and utilization(Role.PREFILL, load, limit, None),
                spent_tokens / rate,
                limit.confidence if limit else "",
                limit and limit.knee_tokens,
                tokens,
            )


def _decode_rows() -> Iterator[Row]:
    for name, specs in ENGINES.items():
        spec = specs[1]
        kv_each = PROMPT_TOKENS + OUTPUT_TOKENS / 2
        room_tokens = spec.roofline().kv_tokens()
        for batch in BATCHES:
            if batch * kv_each > 0.8 * room_tokens:
                continue
            rps = batch / (OUTPUT_TOKENS * step_seconds(spec, batch, kv_each))
            mix = Mix(rps, PROMPT_TOKENS, OUTPUT_TOKENS)
            known, _ = learn_capacity(specs, mix, spec.name, TARGETS_SECONDS)
            for target, engine in zip(TARGETS_SECONDS, known, strict=True):
                limit, load = engine.decode, engine.load
                if load is None:
                    continue
                each = load.kv_usage_ratio * room_tokens / load.batch
                true = target_batch(spec, each, target)
                yield Row(
                    name,
                    f"batch {load.batch:.0f}, {target * 1e3:.0f} ms",
                    limit and limit.requests,
                    true,
                    utilization(Role.DECODE, load, None, limit),
                    true and max(load.batch / true, load.kv_usage_ratio),
                    limit.confidence if limit else "",
                )


def _costs() -> dict[str, float]:
    """Return what it costs to ingest a record, and to learn from the records of 16 engines."""
    simulation = Simulation(
        ClusterSpec(ENGINES["8B on H100"]),
        Constant(Mix(16.0, PROMPT_TOKENS, OUTPUT_TOKENS)),
        reporting=STEPS_ONLY,
    )
    steps_received = [
        (event.key, event.step)
        for _, event in simulation.events(60 * SECOND_NS)
        if isinstance(event, ControlMessage)
        and event.kind is MessageKind.STEP
        and event.step is not None
    ]
    names = ["prefill-0", "decode-0", *(f"engine-{n}" for n in range(16))]
    engines = [
        EngineStatus(name, Role.DECODE, "", "", "", (), EngineState.READY, True, "", "")
        for name in names
    ]
    capacity_model, each = CapacityModel(TARGETS_SECONDS[0]), []
    for key, step in steps_received:
        began = time.perf_counter_ns()
        capacity_model.step(key, step, overlapped=False)
        each.append(time.perf_counter_ns() - began)
    rows = rows_of(step for key, step in steps_received if key.engine.startswith("decode"))
    keys = [StreamKey(f"engine-{n}", n, 1, 0) for n in range(16)]
    capacity_model, began_ns = CapacityModel(TARGETS_SECONDS[0]), int(rows["t_ns"][0])
    capacity_model.advance(engines, began_ns)
    # As the daemon receives them: the steps of a tenth of a second in one packet.
    packets = (rows["t_ns"] - began_ns) // (SECOND_NS // 10)
    bounds = np.flatnonzero(np.diff(packets)) + 1
    began = time.thread_time_ns()
    for number, packet in enumerate(np.split(rows, bounds)):
        for key in keys:
            capacity_model.steps(key, packet, overlapped=False)
        if number % 10 == 9:
            capacity_model.advance(engines, int(packet["t_ns"][-1]))
    all_us = (time.thread_time_ns() - began) / 1e3
    steps = len(rows) * len(keys)
    return {
        "µs to ingest a record that arrives alone, median": median(each) / 1e3,
        "µs a record in packets, everything included": all_us / steps,
        "records a second": steps / (int(rows["t_ns"][-1]) - began_ns) * 1e9,
    }


def _line(row: Row) -> str:
    def text(value: float | None, form: str) -> str:
        return "absent" if value is None else format(value, form)

    error = f"{row.learned / row.true - 1:+.1%}" if row.learned and row.true else ""
    knee_text = ""
    if row.true_knee_tokens is not None:
        knee_text = f"  knee {text(row.knee_tokens, '.0f')} of {row.true_knee_tokens:.0f} tokens"
    return (
        f"{row.engine:24} {row.load:24} limit {text(row.learned, '.0f'):>7} of "
        f"{text(row.true, '.0f'):>6} {error:>7} {row.sides:11} "
        f"used {text(row.used, '.3f'):>6} of {text(row.true_used, '.3f')}"
        f"{knee_text}\n"
    )


def _pair(gpus: int = 1, **more: object) -> tuple[EngineSpec, ...]:
    return disaggregated(1, 1, gpus_each=gpus, noise=Noise(step_ratio=0.10), **more)


ENGINES = {
    "8B on H100": _pair(gpu=H100, model=LLAMA_8B),
    "8B on L40S": _pair(gpu=L40S, model=LLAMA_8B, step_tokens=2048),
    "70B on 4 H100": _pair(4, gpu=H100, model=LLAMA_70B),
    "gpt-oss-120b on 2 H100": _pair(2, gpu=H100, model=GPT_OSS_120B),
}

if __name__ == "__main__":
    sys.exit(main())
