"""Prefill's share and the cost of mixing, of engines whose prices were measured on real GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from bench.attribution.engines import Seen, Traffic, run
from bench.real.engines import PricedLoad

from disagg_exporter.attribution.cost_model.split import StepSplit, token_share
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step
from disagg_exporter.steps.rows import kind_of, rows_of

LEARNED, TAKEN = 10_000, 13_000
"""Steps that are learned from before any is judged, and all steps."""
_BATCH = 500


@dataclass(frozen=True, slots=True)
class LoadScore:
    """One engine at one load, one way to tell its steps; shares in points of all step time.

    `error` is what is said less what is true, `half_width` how far it may be off by its own word;
    `tokens_error` is that of division by tokens. `interference` is true, of the step time of which
    it was told (`interference_told_ratio` of all), in points of that time; `interference_error` is
    None where none was.
    """

    engine: str
    source: str
    way: str
    mixed_ratio: float
    error: float
    tokens_error: float
    half_width: float
    trusted: bool
    interference: float
    interference_error: float | None
    interference_told_ratio: float


WAYS: dict[str, Callable[[Seen], Step]] = {
    "FPM's": lambda seen: seen.fpm,
    "vLLM's records": lambda seen: seen.step,
}


def measure(load: PricedLoad, learned: int = LEARNED, taken: int = TAKEN) -> list[LoadScore]:
    """Let the model learn from an engine's steps in both ways; judge what it says then."""
    steps = list(run(load.spec(), Traffic(*load.traffic), taken, seed=load.seed))
    judged = steps[learned:]
    seconds = sum(one.seconds for one in judged)
    true = sum(one.seconds * one.share for one in judged)
    mixed_ratio = sum(one.seconds for one in judged if one.mixed) / seconds
    by_tokens = sum(one.seconds * _by_tokens(one) for one in judged)
    scores = []
    for way, told in WAYS.items():
        split = StepSplit()
        _divide(split, steps[:learned], told)
        knows = split.state
        lost, known = split.loss_seconds - split.gain_seconds, split.known_seconds
        prefill = true_lost = 0.0
        for one in judged:
            before = split.known_seconds
            prefill += _divide(split, [one], told)
            true_lost += one.interference_seconds * (split.known_seconds > before)
        lost = split.loss_seconds - split.gain_seconds - lost
        known = split.known_seconds - known
        scores.append(
            LoadScore(
                load.name,
                load.source,
                way,
                mixed_ratio,
                100 * (prefill - true) / seconds,
                100 * (by_tokens - true) / seconds,
                100 * (knows.share_error_ratio or 0.0),
                knows.trusted,
                100 * true_lost / known if known else 0.0,
                100 * (lost - true_lost) / known if known else None,
                known / seconds,
            )
        )
    return scores


def _divide(split: StepSplit, steps: list[Seen], told: Callable[[Seen], Step]) -> float:
    """Return the seconds that are called prefill."""
    seconds = 0.0
    for first in range(0, len(steps), _BATCH):
        batch = steps[first : first + _BATCH]
        records = [told(one) for one in batch]
        kinds = np.array([kind_of(record) for record in records])
        lengths_ns = np.array([one.step.elapsed_ns for one in batch])
        shares = split.divide(rows_of(records), kinds, lengths_ns, np.ones(len(batch), bool))
        shares = np.where(kinds == wire.MIXED, shares, kinds == wire.CONTEXT)
        seconds += float(shares @ lengths_ns) / 1e9
    return seconds


def _by_tokens(one: Seen) -> float:
    kind, step = kind_of(one.step), one.step
    if kind == wire.MIXED:
        return token_share(step.context_tokens, step.generation_tokens)
    return float(kind == wire.CONTEXT)
