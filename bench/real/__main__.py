"""The accuracy of our models on measurements of real GPUs: `make bench-real`.

Prices, steps and deployments that others measured (bench/real/*.py name them), with NVIDIA's own
models beside ours. Mixed steps whose attention was measured as one batch are LLMServingSim's; those
priced by the wheel `aiconfigurator-core` are composed of kernels. Without the wheel (`pip install
'disagg-node[bench]'`) its rows are left out. Below them: the simulator against real runs, beside
LLMServingSim's own errors; energy by phase on measured watts; input's share of the cost of captured
engines, beside OpenCost's formula. No constant is tuned to an engine: each load is learned from its
own steps alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import median

from bench.real import limits, recorded, shares, steps
from bench.real.energy import energy_table
from bench.real.engines import MEASURED, WHEEL, PricedLoad, measured_loads, wheel_loads
from bench.real.price import price_table
from bench.real.shares import LoadScore
from bench.real.simulator import simulator_table
from bench.real.wheel import silicon_sample

REPORT = Path("bench/out/real.json")
_PROCESSES = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.real", description=__doc__)
    parser.add_argument(
        "--part",
        action="append",
        choices=PARTS,
        help="only this part (repeatable); default: all parts",
    )
    options = parser.parse_args(arguments)
    with_wheel = importlib.util.find_spec("aiconfigurator_core") is not None
    parts = options.part or list(PARTS)
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "wheel": with_wheel,
        **{part: measure(with_wheel) for part, measure in PARTS.items() if part in parts},
    }
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _steps(with_wheel: bool) -> dict[str, dict[str, float]]:
    scores = {"our cost model": steps.ours(), **(steps.peers() if with_wheel else {})}
    _say("step time, 1,500 prefill steps of a B200, each predicted from those before it")
    for name, found in scores.items():
        _say(f"{name:36} error {found.error_ratio:6.1%}  sum {found.sum_ratio:.3f} of the real one")
    return {name: found._asdict() for name, found in scores.items()}


def _shares(with_wheel: bool) -> list[dict[str, object]]:
    loads = [*measured_loads(), *(wheel_loads() if with_wheel else ())]
    with ProcessPoolExecutor(_PROCESSES) as processes:
        by_load = list(processes.map(_measure, loads))
    scores = [score for some in by_load for score in some]
    lacking = [load.name for load, some in zip(loads, by_load, strict=True) if not some]
    for source in (MEASURED, WHEEL):
        _show_shares(source, [score for score in scores if score.source == source])
    _say(f"\nnot in the tables: {'; '.join(lacking) or 'nothing'}")
    _show_doubt(scores)
    return [asdict(score) for score in scores]


def _recorded(with_wheel: bool) -> list[dict[str, object]]:
    del with_wheel
    scores = recorded.scores()
    _show_shares(recorded.SOURCE, scores)
    for score in scores:
        lost = "-" if score.interference_error is None else f"{score.interference_error:+.2f}"
        _say(
            f"  {score.engine:14} {score.way:15} mixed {score.mixed_ratio:4.0%}, share "
            f"{score.error:+.2f} ± {score.half_width:.2f}, by tokens {score.tokens_error:+.2f}, "
            f"interference {score.interference:+.2f}, its error {lost}"
        )
    return [asdict(score) for score in scores]


def _knees(with_wheel: bool) -> list[dict[str, object]]:
    knees = list(limits.knees(with_wheel=with_wheel))
    for cut, which in ((False, "no prompt fills a step"), (True, "some prompts are cut")):
        _show_knees(which, [score for score in knees if score.cut is cut])
    return [asdict(score) for score in knees]


def _batches(with_wheel: bool) -> dict[float, list[float]]:
    batches = {}
    for seen in (0.25, 0.5, 2.0) if with_wheel else ():
        batches[seen] = found = limits.batches(silicon_sample(), seen)
        above = sum(ratio > 1.1 for ratio in found) / len(found)
        _say(f"target batch, observed to {seen:.0%}: {_spread(found)}, above 1.1: {above:.1%}")
    return batches


def _table(table: Callable[[], tuple[str, bool]]) -> Callable[[bool], str]:
    def show(with_wheel: bool) -> str:
        text, met = table()
        _say(f"\n{text}\nbars: {'met' if met else 'MISSED'}")
        return text

    return show


PARTS: dict[str, Callable[[bool], object]] = {
    "steps": _steps,
    "shares": _shares,
    "recorded": _recorded,
    "knees": _knees,
    "batches": _batches,
    "simulator": _table(simulator_table),
    "energy": _table(energy_table),
    "price": _table(price_table),
}
"""The parts by name: each, given whether there is a wheel, shows a table and returns figures."""


def _measure(load: PricedLoad) -> list[LoadScore]:
    try:
        load.costs()
    except Exception:  # noqa: BLE001 # any error of the wheel: its tables lack this engine
        return []
    return shares.measure(load)


def _show_shares(source: str, scores: list[LoadScore]) -> None:
    if not scores:
        return
    _say(f"\n{source}: prefill's share, of all step time, in points; interference likewise")
    for way in shares.WAYS:
        some = [score for score in scores if score.way == way]
        errors = [abs(score.error) for score in some]
        tokens = [abs(score.tokens_error) for score in some]
        known = [s for s in some if s.interference_error is not None]
        lost = [abs(score.interference_error or 0.0) for score in known]
        of_all = [
            error * score.interference_reported_ratio
            for error, score in zip(lost, known, strict=True)
        ]
        wrong = sum(
            abs(s.interference) > 3 and s.interference * (s.interference_error or 0.0) < 0
            and abs(s.interference_error or 0.0) > abs(s.interference)
            for s in known
        )  # fmt: skip
        _say(
            f"{way:15} {_worst(errors)}; by tokens {_worst(tokens)}; interference of all time "
            f"{_worst(of_all)}, of the reported {_worst(lost)} (reported at {len(known)} of "
            f"{len(some)}, {_reported(some):.0%} of time, sign wrong {wrong})"
        )
    for score in sorted(scores, key=lambda score: -abs(score.error))[:5]:
        _say(f"  {score.engine} ({score.way}): {score.error:+.2f} ± {score.half_width:.2f}")


def _show_doubt(scores: list[LoadScore]) -> None:
    held = sum(abs(score.error) <= score.half_width for score in scores) / len(scores)
    widths = [score.half_width for score in scores]
    trusted = [score for score in scores if score.trusted]
    _say(
        f"\nthe share lies within its stated interval: {held:.1%} of {len(scores)}; half width "
        f"{_worst(widths)}; trusted {len(trusted)}, of these "
        f"{_worst(s.half_width for s in trusted)}, error {_worst(abs(s.error) for s in trusted)}"
    )


def _show_knees(which: str, knees: list[limits.KneeScore]) -> None:
    ratios = [score.learned / score.tokens for score in knees if score.learned is not None]
    near = sum(abs(ratio - 1) <= 0.15 for ratio in ratios)
    _say(
        f"\nknee, {which}, learned over true: {_spread(ratios)}; "
        f"within 15 %: {near} of {len(ratios)}; not reported: {len(knees) - len(ratios)}"
    )
    for score in knees:
        learned = "-" if score.learned is None else f"{score.learned:.0f}"
        _say(f"  {score.curve:44} {learned:>6} of {score.tokens:.0f} tokens")


def _reported(scores: list[LoadScore]) -> float:
    return sum(score.interference_reported_ratio for score in scores) / len(scores)


def _worst(values: Iterable[float]) -> str:
    found = list(values)
    return f"{median(found):.2f} (worst {max(found):.2f})" if found else "-"


def _spread(ratios: list[float]) -> str:
    ranked = sorted(ratios)
    low, high = ranked[len(ranked) // 10], ranked[-1 - len(ranked) // 10]
    return f"median {median(ranked):.2f}, p10 to p90 {low:.2f} to {high:.2f} ({len(ranked)})"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
