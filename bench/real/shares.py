"""Prefill's share and the cost of mixing, for engines priced by measurements of real GPUs."""

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
"""Steps for learning, before any is judged, and all steps."""
_BATCH = 500


@dataclass(frozen=True, slots=True)
class LoadScore:
    """One engine at one load, with one kind of records; shares in points of all step time.

    `error` is the estimate less the truth, `half_width` that of its stated interval; `tokens_error`
    is the error of division by tokens. `interference` is the truth, in points of the step time for
    which it was reported (`interference_reported_ratio` of all); `interference_error` is None where
    it was not.
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
    interference_reported_ratio: float


WAYS: dict[str, Callable[[Seen], Step]] = {
    "FPM's": lambda seen: seen.fpm,
    "vLLM's records": lambda seen: seen.step,
}


def measure(load: PricedLoad, learned: int = LEARNED, taken: int = TAKEN) -> list[LoadScore]:
    """Train the model on an engine's steps by both kinds of records, then judge its estimates."""
    steps = list(run(load.spec(), Traffic(*load.traffic), taken, seed=load.seed))
    return [
        judge(load.name, load.source, way, StepSplit(), steps[:learned], steps[learned:])
        for way in WAYS
    ]


def judge(
    name: str, source: str, way: str, split: StepSplit, first: list[Seen], judged: list[Seen]
) -> LoadScore:
    """Let a model learn from some steps, and hold its estimates of the next against the truth."""
    record = WAYS[way]
    seconds = sum(one.seconds for one in judged)
    true = sum(one.seconds * one.share for one in judged)
    mixed_ratio = sum(one.seconds for one in judged if one.mixed) / seconds
    by_tokens = sum(one.seconds * _by_tokens(one) for one in judged)
    _divide(split, first, record)
    knows = split.state
    lost, known = split.loss_seconds - split.gain_seconds, split.known_seconds
    prefill = true_lost = 0.0
    for one in judged:
        before = split.known_seconds
        prefill += _divide(split, [one], record)
        true_lost += one.interference_seconds * (split.known_seconds > before)
    lost = split.loss_seconds - split.gain_seconds - lost
    known = split.known_seconds - known
    return LoadScore(
        name,
        source,
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


def _divide(split: StepSplit, steps: list[Seen], record: Callable[[Seen], Step]) -> float:
    """Return the seconds attributed to prefill."""
    seconds = 0.0
    for first in range(0, len(steps), _BATCH):
        batch = steps[first : first + _BATCH]
        records = [record(one) for one in batch]
        kinds = np.array([kind_of(each) for each in records])
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
