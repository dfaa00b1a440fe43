"""CPU time to diagnose a thousand engines: `PYTHONPATH=tests python -m bench.diagnosis.scale`.

Half an hour of synthetic scrapes each 15 s, as one model and as many.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.diagnose import diagnose
from disagg_cluster.planner.diagnose.evidence.prompt_lengths import PROMPT_LENGTHS, PROMPT_SUMS
from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from disagg_exporter.engine_pages.histograms import PROMPT_BOUNDS_TOKENS
from support.diagnosis_windows import Line, WindowMaker

ENGINES, ENGINES_A_MODEL = 1000, 8
_ROUNDS = 3
# Lengths of the prompts of one engine between two scrapes: their number, and a lognormal law.
_PROMPTS, _MEDIAN_LOG_TOKENS, _SPREAD = 30, 8.0, 0.8


def main() -> int:
    """Print the CPU seconds of the best of some rounds."""
    lines = [
        Line(f"{role}-{number}", role=role, node=f"node-{number // 8}", transfers=2.0)
        for number in range(ENGINES // 2)
        for role in ("prefill", "decode")
    ]
    lines[0] = replace(lines[0], then={"slowness": 2.0, "wait_seconds": 1.6})
    window = _with_lengths(WindowMaker(seconds=1800.0, onset_seconds=1500.0).make(lines))
    series = sum(map(len, window.families.values()))
    for name, seen in (("one model", window), ("models of eight engines", _divided(window))):
        seconds = min(_cpu_seconds(seen) for _ in range(_ROUNDS))
        sys.stdout.write(f"{ENGINES} engines, {series} series, {name}: {seconds:.2f} s of CPU\n")
    return 0


def _with_lengths(window: SeriesWindow) -> SeriesWindow:
    """The same engines with more unequal prompts: some are always very long."""
    rng, buckets, sums = np.random.default_rng(0), [], []
    for info in window.of("disagg_engine_info"):
        if info.labels["role"] == "prefill":
            times, labels = info.times_seconds, dict(info.labels)
            tokens = rng.lognormal(_MEDIAN_LOG_TOKENS, _SPREAD, (len(times), _PROMPTS))
            sums.append(ScrapedSeries(labels, times, np.cumsum(tokens.sum(axis=1))))
            for bound in (*PROMPT_BOUNDS_TOKENS, np.inf):
                below = np.cumsum((tokens <= bound).sum(axis=1)).astype(float)
                buckets.append(ScrapedSeries({**labels, "le": str(bound)}, times, below))
    lengths = {PROMPT_LENGTHS: tuple(buckets), PROMPT_SUMS: tuple(sums)}
    return replace(window, families={**window.families, **lengths})


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
