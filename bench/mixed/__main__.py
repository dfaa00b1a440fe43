"""How well the mixed steps of a real engine are predicted: `make bench-mixed`.

vLLM on the CPU computes prompts in chunks between its decode steps, under prompts alone, answers
alone and both at once; a plugin inside its worker stamps each step. A cost model trained on the
steps of one phase alone then predicts each mixed step. The floor beside it is a line fitted by
least squares to the mixed steps *themselves*: its error is due to the machine.

The machine must be quiet: on shared cores the same step takes up to twice as long.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from bench.report import finish

from disagg_cluster.demo.real_vllm import tiny_model
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step
from disagg_exporter.steps.rows import kind_of
from support.mixed_load import record
from support.mixed_steps import accounted_seconds, median_error
from support.vllm_nodes import WIDE_MODEL

PYTHON = Path(".venv-vllm/bin/python")
KINDS = {"sync": False, "async": True}
BARS = {
    "sync_accounted_off_percent": 5.0,
    "sync_mixed_predicted_within_percent": 10.0,
    "async_accounted_off_percent": 10.0,
    "async_mixed_predicted_within_percent": 10.0,
}
REPORT = Path("bench/out/mixed.json")


def main() -> int:
    """Measure, print and write the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    if not PYTHON.exists():
        raise SystemExit("there is no .venv-vllm; `make vllm-environment` makes it")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bm-") as name:
        model = Path(name) / "model"
        make = [str(PYTHON), tiny_model.__file__, str(model), *WIDE_MODEL]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        for kind, overlapped in KINDS.items():
            folder = Path(name) / kind
            folder.mkdir()
            measured = _measure(model, folder, overlapped=overlapped)
            figures |= {f"{kind}_{key}": value for key, value in measured.items()}
    return finish(REPORT, figures, BARS, as_json=options.json)


def _measure(model: Path, folder: Path, *, overlapped: bool) -> dict[str, float]:
    engine = asyncio.run(record(PYTHON.absolute(), model, folder, overlapped=overlapped))
    steps = [message.step for message in engine.steps if message.step is not None]
    held_ns = [step.held_ns for step in engine.truth()]
    accounted, stamped = accounted_seconds(steps, overlapped=overlapped), sum(held_ns) / 1e9
    return {
        "steps": float(len(steps)),
        "accounted_seconds": accounted,
        "stamped_seconds": stamped,
        "accounted_off_percent": abs(accounted / stamped - 1) * 100,
        "mixed_predicted_within_percent": median_error(zip(steps, held_ns, strict=True)) * 100,
        "mixed_fitted_within_percent": _fitted_within(steps, held_ns) * 100,
    }


def _fitted_within(steps: Sequence[Step], held_ns: Sequence[int]) -> float:
    """Return the median relative error of a line through the mixed steps themselves."""
    mixed = [(s, ns / 1e9) for s, ns in zip(steps, held_ns, strict=True) if _is_mixed(s)]
    features = np.array([[1.0, s.context_tokens, s.generation_requests] for s, _ in mixed])
    seconds = np.array([seconds for _, seconds in mixed])
    weights = 1 / seconds[:, None]
    fit, *_ = np.linalg.lstsq(features * weights, np.ones(len(seconds)), rcond=None)
    return median(np.abs(features @ fit / seconds - 1).tolist())


def _is_mixed(step: Step) -> bool:
    return kind_of(step) == wire.MIXED


if __name__ == "__main__":
    sys.exit(main())
