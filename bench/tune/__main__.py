"""How close the tuner comes to an engine's knee, and with how few probes: `make bench-tune`.

Each seed draws an engine (the shipped tables of measured steps, and data sheets), a prompt length
and noise. The true knee is what the product's own function reads off every size of the grid without
noise, or none where it concludes none, which is then the right answer. Beside it is the distance
from the first size at all with nine tenths of the best rate, jags included. Peers run on the same
engine with the same noise: every size of the grid, golden section, bisection, doublings. Each table
alone, and batches at a latency target, are below.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median

from bench.report import finish
from bench.tune.searches import SEARCHES, FoundSize, our_batch, swept_batch
from bench.tune.simulated import CONTEXTS, PROMPTS, NoisyEngine, PricedEngine, engines

from disagg_cluster.tune.probed import GRID_STEP

REPORT = Path("bench/out/tune.json")
SEEDS = 100
NOISE_RATIO = 0.03
NEAR = 0.15
_PROCESSES = 2
_TARGETS = (0.02, 0.03, 0.05)
_TABLE_SEEDS = 10
_ROUNDING = 1.01
BARS = {
    "knees off by more than a step of the grid, ratio": 0.05,
    "probes over those of a full sweep": 0.5,
    "knees of tables off by more than 15 %, ratio": 0.05,
    "batches off by more than a step of the grid, ratio": 0.05,
    "probes of batches over those of a full sweep": 0.5,
}


@dataclass(frozen=True, slots=True)
class KneeScore:
    """One search on one engine: the true knee, the one found, and the cost."""

    search: str
    engine: str
    prompt_tokens: int
    true: float | None
    first: float
    found: FoundSize

    def within(self, ratio: float) -> bool:
        """Return whether it is right to a factor; for none, whether it found none."""
        if self.true is None or self.found.size is None:
            return self.true is None and self.found.size is None
        return 1 / ratio <= self.found.size / self.true <= ratio


def _seed(task: tuple[int, float]) -> list[KneeScore]:
    seed, noise = task
    dice = random.Random(seed)
    engine, prompt_tokens = dice.choice(list(engines())), dice.choice(PROMPTS)
    return _scores(engine, prompt_tokens, seed, noise, tuple(SEARCHES))


def _table(task: tuple[str, int, float]) -> list[KneeScore]:
    name, seed, noise = task
    engine = next(each for each in engines() if each.name == name)
    return [
        score
        for prompt_tokens in PROMPTS
        for score in _scores(engine, prompt_tokens, seed, noise, ("ours", "full sweep"))
    ]


def _scores(
    engine: PricedEngine, prompt_tokens: int, seed: int, noise: float, names: Sequence[str]
) -> list[KneeScore]:
    true, first = engine.knee(prompt_tokens), engine.first_size(prompt_tokens)
    return [
        KneeScore(
            name,
            engine.name,
            prompt_tokens,
            true,
            first,
            SEARCHES[name](NoisyEngine(engine, noise, random.Random(seed)), prompt_tokens),
        )
        for name in names
    ]


def _batch(task: tuple[int, float]) -> tuple[bool, int, int]:
    """Return whether a seed's batch is right to a step of the grid; its probes, and a sweep's."""
    seed, noise = task
    dice = random.Random(seed)
    engine, context = dice.choice(list(engines())), dice.choice(CONTEXTS)
    target = dice.choice(_TARGETS)
    true = engine.batch(context, target)
    found = our_batch(NoisyEngine(engine, noise, random.Random(seed)), context, target)
    swept = swept_batch(NoisyEngine(engine, noise, random.Random(seed)), context, target)
    if true is None or found.size is None:
        right = true is None and found.size is None
    else:
        # Batches are whole numbers: a small one is more than a step of the grid from the next.
        most = max(GRID_STEP * _ROUNDING, (true + 1) / true)
        right = 1 / most <= found.size / true <= most
    return right, found.probes, swept.probes


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, print, compare with the bars."""
    parser = argparse.ArgumentParser(prog="python -m bench.tune", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--noise", type=float, default=NOISE_RATIO)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    tables = [each.name for each in engines() if each.is_table]
    with ProcessPoolExecutor(_PROCESSES) as processes:
        knees = _all(processes.map(_seed, [(n, options.noise) for n in seeds]))
        each_table = [(name, n, options.noise) for name in tables for n in range(_TABLE_SEEDS)]
        of_tables = _all(processes.map(_table, each_table))
        quiet = _all(processes.map(_table, [(name, 0, 0.0) for name in tables]))
        batches = list(processes.map(_batch, [(n, options.noise) for n in seeds]))
    if not options.json:
        _say(_peers(knees))
        _say(_tables(_of(of_tables, "ours"), _of(quiet, "ours")))
    mine, swept = _of(knees, "ours"), _of(knees, "full sweep")
    figures = {
        "knees off by more than a step of the grid, ratio": _missed(mine, GRID_STEP),
        "probes over those of a full sweep": _probes(mine) / _probes(swept),
        "step seconds over those of a full sweep": _seconds(mine) / _seconds(swept),
        "knees of tables off by more than 15 %, ratio": _missed(_of(of_tables, "ours"), 1 + NEAR),
        "the same without noise": _missed(_of(quiet, "ours"), 1 + NEAR),
        "the same of a full sweep, with noise": _missed(_of(of_tables, "full sweep"), 1 + NEAR),
        "batches off by more than a step of the grid, ratio": sum(not b[0] for b in batches)
        / len(batches),
        "probes of batches over those of a full sweep": sum(b[1] for b in batches)
        / sum(b[2] for b in batches),
    }
    return finish(
        REPORT, figures, BARS, as_json=options.json, noise=options.noise, seeds=options.seeds
    )


def _of(scores: Sequence[KneeScore], search: str) -> list[KneeScore]:
    return [score for score in scores if score.search == search]


def _all(scores: Iterable[list[KneeScore]]) -> list[KneeScore]:
    return list(chain.from_iterable(scores))


def _missed(scores: Sequence[KneeScore], ratio: float) -> float:
    return sum(not score.within(ratio) for score in scores) / len(scores)


def _probes(scores: Sequence[KneeScore]) -> int:
    return sum(score.found.probes for score in scores)


def _seconds(scores: Sequence[KneeScore]) -> float:
    return sum(score.found.seconds for score in scores)


def _peers(scores: Sequence[KneeScore]) -> str:
    by_search: Mapping[str, list[KneeScore]] = {name: _of(scores, name) for name in SEARCHES}
    whole = by_search["full sweep"]
    lines = [
        f"{'':16}{'in a step':>10}{'in 15 %':>9}{'probes':>8}{'of sweep':>9}{'seconds':>9}"
        f"{'of first size':>15}"
    ]
    for name, found in by_search.items():
        known = [score for score in found if score.found.size is not None]
        strict = median(score.found.size / score.first for score in known if score.found.size)
        lines.append(
            f"{name:16}{1 - _missed(found, GRID_STEP):>10.0%}{1 - _missed(found, 1 + NEAR):>9.0%}"
            f"{_probes(found) / len(found):>8.1f}{_probes(found) / _probes(whole):>9.2f}"
            f"{_seconds(found) / _seconds(whole):>9.2f}{strict:>15.2f}"
        )
    return "\n".join(lines) + "\n"


def _tables(noisy: Sequence[KneeScore], quiet: Sequence[KneeScore]) -> str:
    lines = [
        f"{'table':32}{'prompt':>7}{'true':>7}{'first':>7}{'quiet':>7}{'noisy, over true':>24}"
    ]
    for score in quiet:
        same = (score.engine, score.prompt_tokens)
        sizes = sorted(
            each.found.size / (score.true or each.found.size)
            for each in noisy
            if (each.engine, each.prompt_tokens) == same and each.found.size is not None
        )
        spread = f"{sizes[0]:.2f} to {sizes[-1]:.2f} ({len(sizes)})" if sizes else "none"
        lines.append(
            f"{score.engine:32}{score.prompt_tokens:>7}{_or_none(score.true):>7}"
            f"{score.first:>7.0f}{_or_none(score.found.size):>7}{spread:>24}"
        )
    return "\n".join(lines) + "\n"


def _or_none(size: float | None) -> str:
    return "none" if size is None else f"{size:.0f}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
