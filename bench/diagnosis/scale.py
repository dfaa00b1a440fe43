"""CPU time to diagnose a thousand engines: `PYTHONPATH=tests python -m bench.diagnosis.scale`.

Half an hour of synthetic scrapes each 15 s, as one model and as many.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.diagnose import diagnose
from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from support.diagnosis_windows import Line, WindowMaker

ENGINES, ENGINES_A_MODEL = 1000, 8
_ROUNDS = 3


def main() -> int:
    """Print the CPU seconds of the best of some rounds."""
    lines = [
        Line(f"{role}-{number}", role=role, node=f"node-{number // 8}", transfers=2.0)
        for number in range(ENGINES // 2)
        for role in ("prefill", "decode")
    ]
    lines[0] = replace(lines[0], then={"slowness": 2.0, "wait_seconds": 1.6})
    window = WindowMaker(seconds=1800.0, onset_seconds=1500.0).make(lines)
    series = sum(map(len, window.families.values()))
    for name, seen in (("one model", window), ("models of eight engines", _divided(window))):
        seconds = min(_cpu_seconds(seen) for _ in range(_ROUNDS))
        sys.stdout.write(f"{ENGINES} engines, {series} series, {name}: {seconds:.2f} s of CPU\n")
    return 0


def _divided(window: SeriesWindow) -> SeriesWindow:
    """The same engines divided among many models."""

    def of_model(each: ScrapedSeries) -> ScrapedSeries:
        number = int(each.labels["engine"].rpartition("-")[2]) * 2 // ENGINES_A_MODEL
        return replace(each, labels={**each.labels, "model_name": f"model-{number}"})

    infos = tuple(map(of_model, window.of("disagg_engine_info")))
    return replace(window, families={**window.families, "disagg_engine_info": infos})


def _cpu_seconds(window: SeriesWindow) -> float:
    began = time.process_time()
    diagnose(window, Targets(2.0, 0.05))
    return time.process_time() - began


if __name__ == "__main__":
    sys.exit(main())
