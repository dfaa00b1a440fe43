"""How well the gain of separating is predicted: `make bench-separation`.

Against simulation: 20 random loads, mixed engines and pools on the same GPUs at the same targets,
the largest load of each by bisection. Against deployments that others measured both ways
(`tests/data/aiconfigurator/separation_pairs.csv`, and other pairs in `silicon_sample.csv` of the
wheel `aiconfigurator-core`): predictions from mixed rows and kernel tables alone, beside "always
separate" and beside uncorrected tables; without the wheel these are left out. Last, the verdicts on
cases that people reported, where none is right or wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.real.wheel import silicon_sample
from bench.separation.deployments import pairs_of, read_deployments, read_pairs
from bench.separation.loads import LoadCase, cases
from bench.separation.pairs import (
    PairScore,
    errors_of_neighbours,
    other_pairs,
    predict,
    score,
    table,
)
from bench.separation.predicted import Predictor
from bench.separation.reported_cases import answers
from bench.separation.simulated import SimulatedGain, simulated_gain

REPORT = Path("bench/out/separation.json")
PAIRS = Path("tests/data/aiconfigurator/separation_pairs.csv")
_LISTED_SPEEDS = (20, 30, 50, 75, 100)
_OTHER_SPEEDS = (15, 25, 40, 60, 85)
_LEAST_ROWS = 3
_LOADS, _REQUESTS = 20, 800
_PROCESSES = 2
_LOAD_BAR, _PAIR_BAR = 0.10, 0.20


def main() -> int:
    """Measure, print, write the report; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.separation")
    parser.add_argument("--seed", type=int, default=1, help="the seed of simulated loads")
    parser.add_argument("--loads", type=int, default=_LOADS, help="how many are simulated")
    parser.add_argument("--pairs", type=Path, default=PAIRS, help="a CSV of measured pairs")
    parser.add_argument("--deployments", type=Path, help="a CSV as the wheel's silicon_sample.csv")
    options = parser.parse_args()
    bars: dict[str, bool] = {}
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
    }
    if importlib.util.find_spec("aiconfigurator_core") is None:
        _say("measured deployments: left out, the extra `bench` is not installed")
    else:
        logging.disable(logging.WARNING)
        found = _measured(options.pairs, options.deployments or silicon_sample(), bars)
        report["pairs"] = found
    _say("")
    for line in answers():
        _say(line)
    if options.loads:
        report["loads"] = _simulated(options.loads, options.seed, bars)
    for bar, met in bars.items():
        _say(f"bar: {bar}: {'met' if met else 'MISSED'}")
    report["bars"] = bars
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if all(bars.values()) else 1


def _measured(listed_path: Path, rows_path: Path, bars: dict[str, bool]) -> dict[str, Any]:
    """Score the listed pairs, then others; the predictor gets only the mixed rows."""
    rows = read_deployments(rows_path)
    predictor = Predictor([row for row in rows if row.mixed])
    listed = read_pairs(listed_path)
    others = other_pairs(pairs_of(rows, _LISTED_SPEEDS), listed, rows, _LEAST_ROWS)
    kinds = {pair.kind for pair in listed}
    speeds = [pair for pair in pairs_of(rows, _OTHER_SPEEDS) if pair.kind in kinds]
    scores: dict[str, Any] = {}
    for name, pairs in (
        ("listed pairs", listed),
        ("the same deployments at other speeds", speeds),
        (f"other pairs with {_LEAST_ROWS} deployments each way or more", others),
    ):
        if not pairs:
            continue
        predicted = predict(pairs, predictor)
        by_tables = [predictor.by_tables(each.pair) for each in predicted]
        found = score(len(pairs), predicted)
        _say(f"\n{name}\n{table(predicted, by_tables)}")
        _say_score(found, [each.pair.gain for each in predicted], by_tables)
        rough = list(errors_of_neighbours(pairs, [*listed, *speeds]))
        if rough:
            _say(
                f"interpolated from the neighbouring speeds, {len(rough)} gains: median error "
                f"{median(rough):.0%}"
            )
        scores[name] = asdict(found)
        if pairs is listed:
            bars["70 % of the measured pairs decided"] = found.decided >= 0.7 * found.pairs
            bars["of those beyond 10 %, 90 % right"] = found.right >= 0.9 * found.clear
            bars["better than always separate"] = found.right > found.winners
            bars["2 of the losers named"] = found.losers_named >= 2
            bars["median error 20 %"] = found.median_error <= _PAIR_BAR
    return scores


def _say_score(found: PairScore, gains: list[float], by_tables: list[float | None]) -> None:
    _say(
        f"decided {found.decided} of {found.pairs}; of {found.clear} decided beyond 10 % right "
        f"{found.right}, always separate {found.winners}; losers named {found.losers_named} of "
        f"{found.losers}; median error {found.median_error:.0%}"
    )
    known = [(one, other) for one, other in zip(gains, by_tables, strict=True) if other is not None]
    clear = [(gain, tabled) for gain, tabled in known if abs(gain - 1) > 0.1]
    right = sum((tabled > 1) is (gain > 1) for gain, tabled in clear)
    error = median(abs(tabled / gain - 1) for gain, tabled in known) if known else float("nan")
    _say(f"uncorrected tables: of {len(clear)} beyond 10 % right {right}, median error {error:.0%}")


def _simulated(loads: int, seed: int, bars: dict[str, bool]) -> list[dict[str, Any]]:
    _say("\nsimulated loads, requests/s: predicted / simulated")
    with ProcessPoolExecutor(_PROCESSES) as processes:
        known = []
        for each in processes.map(_simulate, cases(loads, seed)):
            if each is not None:
                known.append(each)
                _say(_line(each))
    errors = [abs(each.error) for each in known]
    held = sum(each.verdict.gain.low <= each.gain <= each.verdict.gain.high for each in known)
    _say(
        f"gain, error: median {median(errors):.1%}, worst {max(errors):.0%}; within its interval "
        f"{held} of {len(known)}; undecided {loads - len(known)}"
    )
    bars["median error of the simulated gain 10 %"] = median(errors) <= _LOAD_BAR
    return [
        {
            "gpu": each.case.gpu.name,
            "model": each.case.model.name,
            "predicted": each.verdict.gain.ratio,
            "simulated": each.gain,
            "advice": each.verdict.advice,
        }
        for each in known
    ]


def _simulate(case: LoadCase) -> SimulatedGain | None:
    return simulated_gain(case, _REQUESTS, 1)


def _line(found: SimulatedGain) -> str:
    case, verdict = found.case, found.verdict
    mixed, split, gain = verdict.mixed, verdict.split, verdict.gain
    name = f"{case.model.name.split('/')[-1]} on {case.gpus} x {case.gpu.name}"
    return (
        f"{name[:46]:46} {case.mix.prompt_tokens:5.0f}/{case.mix.output_tokens:<4.0f} mixed "
        f"{mixed.requests_per_second:6.2f}/{found.mixed_requests_per_second:<6.2f} "
        f"{split.prefill_engines}+{split.decode_engines} {split.requests_per_second:6.2f}/"
        f"{found.split_requests_per_second:<6.2f} gain {gain.ratio:.2f} ({gain.low:.2f} to "
        f"{gain.high:.2f}) / {found.gain:.2f} {verdict.advice}"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
