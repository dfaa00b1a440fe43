"""How far each way to divide an engine's time is from the truth: `make bench-attribution`.

Four simulated aggregated engines (the roofline of `disagg_cluster.sim`: a maximum of computing
and reading, batches padded, tensor-parallel exchange; 10 % noise a step and a drift of 10 %), each
at loads whose mixed steps are 5, 10, 25, 50, 75, 90 and 95 % prefill. What "prefill share" of a
step means when costs do not add up is defined in docs/decisions/0005-mixed-steps.md (what each
phase adds, averaged over both orders), and is computed from the simulator's own prices, without
noise. That definition was written down before the first result, and no model was asked for it.

The error is |share − true share| of the time of all mixed steps of a run, in percentage points;
"whole engine" is the same over all of its step time, pure steps included. The first steps of
each run are for learning and not judged. The bars hold for the worst engine at the worst share.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import median

from bench.attribution.engines import ENGINES, run
from bench.attribution.methods import BY_STEP, FPM, FULL, METHODS, RECORDS, Score, measure

from disagg_cluster.sim.cluster import EngineSpec

LEVELS = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
BARS = {FULL: 1.0, RECORDS: 3.0, FPM: 3.0}
STEPS, WARM_STEPS, SEARCH_STEPS = 14_000, 9_000, 1_000
PROMPTS = tuple(8.0 * 2 ** (n * 0.75) for n in range(15))
REPORT = Path("bench/out/attribution.json")


def main() -> int:
    """Measure, print, write the report; 1 if a bar is missed."""
    began = time.perf_counter()
    scores: dict[float, list[Score]] = {level: [] for level in LEVELS}
    for number, spec in enumerate(ENGINES):
        for level, prompt_tokens in _loads(spec).items():
            seen = run(spec, prompt_tokens, STEPS, seed=number)
            scores[level].append(measure(spec.name, prompt_tokens, seen, WARM_STEPS))
    everyone = [score for several in scores.values() for score in several]
    sys.stdout.write("mixed steps: error in percentage points, median (max) over engines\n")
    sys.stdout.write(_table(scores, BY_STEP, lambda score: score.mixed))
    sys.stdout.write("\nwhole engine: the same, pure steps included\n")
    sys.stdout.write(_table(scores, METHODS, lambda score: score.whole))
    worst = {name: max(score.mixed[name] for score in everyone) for name in BARS}
    for name, bar in BARS.items():
        verdict = "met" if worst[name] <= bar else f"MISSED by {worst[name] - bar:.2f}"
        sys.stdout.write(f"bar: {name} ≤ {bar:g} at its worst, {worst[name]:.2f}: {verdict}\n")
    met = all(worst[name] <= bar for name, bar in BARS.items())
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "wall_seconds": round(time.perf_counter() - began, 1),
        "bars": BARS,
        "worst": worst,
        "met": met,
        "scores": [{"level": level, **asdict(s)} for level in LEVELS for s in scores[level]],
    }
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if met else 1


def _loads(spec: EngineSpec) -> dict[float, float]:
    """Return, for each level that an engine reaches, the prompt length that brings it there."""
    found = [(prompt, _share(spec, prompt)) for prompt in PROMPTS]
    loads = {}
    for level in LEVELS:
        for (low, below), (high, above) in pairwise(found):
            if below <= level < above:
                part = (level - below) / (above - below)
                loads[level] = math.exp((1 - part) * math.log(low) + part * math.log(high))
                break
    return loads


def _share(spec: EngineSpec, prompt_tokens: float) -> float:
    mixed = [s for s in run(spec, prompt_tokens, SEARCH_STEPS, seed=99) if s.mixed]
    return sum(s.share * s.seconds for s in mixed) / sum(s.seconds for s in mixed)


def _table(
    scores: dict[float, list[Score]],
    methods: Iterable[str],
    errors: Callable[[Score], dict[str, float]],
) -> str:
    names = list(methods)
    lines = [f"{'share':>7} {'engines':>7} " + " ".join(f"{name:>15}" for name in names)]
    for level, several in (*scores.items(), (None, [s for all_ in scores.values() for s in all_])):
        if not several:
            continue
        cells = []
        for name in names:
            values = [errors(score)[name] for score in several]
            cells.append(f"{median(values):6.2f} ({max(values):6.2f})")
        label = "all" if level is None else f"{level:.0%}"
        lines.append(f"{label:>7} {len(several):>7} " + " ".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
