"""Methods of estimating prefill's part of an engine's time, all judged on the same steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from bench.attribution.engines import Seen
from bench.attribution.pages import Pages, Stretch

from disagg_cluster.simulator.cluster.spec import EngineSpec
from disagg_exporter.attribution.cost_model.cost import StepCost
from disagg_exporter.attribution.cost_model.split import StepSplit, token_share
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step
from disagg_exporter.steps.rows import kind_of, rows_of

FULL, FPM, RECORDS, TOKENS = "full features", "FPM's", "vLLM's records", "token share"
PAGES, REQUESTS, NAME = "pages", "request time", "pod name"
LIMITED_PAGES = "pages, limit"
BY_STEP = (FULL, FPM, RECORDS, TOKENS)
METHODS = (*BY_STEP, PAGES, LIMITED_PAGES, REQUESTS, NAME)

Way = Callable[[Sequence[Seen]], list[float]]
"""Estimates each step's share of prefill."""

_BATCH = 1000


@dataclass(slots=True)
class Score:
    """One engine at one load, judged on the steps after `learned_steps`.

    Errors of the share of prefill in percentage points: `mixed` over the time of mixed steps only,
    `whole` over all of the engine's step time, which is what its counters show. A method that does
    not observe steps has no `mixed`.
    """

    engine: str
    prompt_tokens: float
    learned_steps: int
    mixed_steps: int = 0
    share: float = 0.0
    whole_share: float = 0.0
    trusted: dict[str, bool] = field(default_factory=dict)
    residual_ratio: dict[str, float | None] = field(default_factory=dict)
    mixed: dict[str, float] = field(default_factory=dict)
    whole: dict[str, float] = field(default_factory=dict)


class Features:
    """Our model, given the exact features."""

    def __init__(self) -> None:
        self.cost = StepCost()

    def __call__(self, steps: Sequence[Seen]) -> list[float]:
        """Return each step's share of prefill, by what was learned before it; then learn it."""
        return [self._divide(seen) for seen in steps]

    def _divide(self, seen: Seen) -> float:
        work = seen.full
        share = None
        if not work.decode_requests or not work.prefill_tokens:
            share = float(bool(work.prefill_tokens))
        elif self.cost.divides:
            share = self.cost.prefill_share(work)
        self.cost.learn(work, seen.seconds)
        return _by_tokens(seen) if share is None else share


class Records:
    """Our model, given the records that the accounting gets; `record` returns a step's record."""

    def __init__(self, record: Callable[[Seen], Step]) -> None:
        self.split = StepSplit()
        self._record = record

    def __call__(self, steps: Sequence[Seen]) -> list[float]:
        """Return each step's share of prefill as the accounting computes it."""
        records = [self._record(seen) for seen in steps]
        kinds = np.array([kind_of(record) for record in records])
        lengths_ns = np.array([seen.step.elapsed_ns for seen in steps])
        single = np.ones(len(steps), dtype=bool)
        shares = self.split.divide(rows_of(records), kinds, lengths_ns, single)
        known: list[float] = np.where(kinds == wire.MIXED, shares, kinds == wire.CONTEXT).tolist()
        return known


class Sums:
    """Seconds of the judged steps, and the shares that were estimated."""

    def __init__(self) -> None:
        self.mixed_steps = 0
        self.seconds = self.mixed_seconds = self.true = self.true_mixed = 0.0
        self.reading_seconds = self.running_seconds = 0.0
        # Of stretches: their seconds, the estimated prefill seconds and the true ones.
        self.paged = {name: [0.0, 0.0, 0.0] for name in (PAGES, LIMITED_PAGES)}
        self.whole = dict.fromkeys(BY_STEP, 0.0)
        self.mixed = dict.fromkeys(BY_STEP, 0.0)

    def add(self, one: Seen, shares: dict[str, float]) -> None:
        """Add one step."""
        self.seconds += one.seconds
        self.true += one.seconds * one.share
        self.reading_seconds += one.seconds * one.reading
        self.running_seconds += one.seconds * one.running
        for name, share in shares.items():
            self.whole[name] += one.seconds * share
        if one.mixed:
            self.mixed_steps += 1
            self.mixed_seconds += one.seconds
            self.true_mixed += one.seconds * one.share
            for name, share in shares.items():
                self.mixed[name] += one.seconds * share

    def add_stretch(self, name: str, stretch: Stretch) -> None:
        """Add a stretch between two reads of a page, for one method of reading it."""
        paged = self.paged[name]
        paged[0] += stretch.busy_seconds
        paged[1] += stretch.busy_seconds * stretch.share
        paged[2] += stretch.true_seconds


def measure(
    spec: EngineSpec,
    prompt_tokens: float,
    seen: Iterable[Seen],
    windows: Iterable[tuple[int, int]],
) -> Iterator[Score]:
    """Run all methods on an engine's steps; judge them in each window of step numbers."""
    full = Features()
    pages = {PAGES: Pages(), LIMITED_PAGES: Pages(spec.step_tokens)}
    records, fpm = Records(lambda s: s.step), Records(lambda s: s.fpm)
    ways = {FULL: full, FPM: fpm, RECORDS: records, TOKENS: _all_by_tokens}
    states = {FULL: full.cost, FPM: fpm.split, RECORDS: records.split}
    left = list(windows)
    sums = Sums()
    for number, (one, shares) in enumerate(_divided(seen, ways)):
        stretches = {name: list(page.ingest(one)) for name, page in pages.items()}
        first, last = left[0]
        if number < first:
            continue
        sums.add(one, shares)
        for name, some in stretches.items():
            for stretch in some:
                sums.add_stretch(name, stretch)
        if number == last - 1:
            score = _score(Score(spec.name, prompt_tokens, first), sums)
            score.trusted = {name: known.state.trusted for name, known in states.items()}
            score.residual_ratio = {n: known.state.residual_ratio for n, known in states.items()}
            yield score
            sums = Sums()
            del left[0]
            if not left:
                return


def _divided(seen: Iterable[Seen], ways: dict[str, Way]) -> Iterator[tuple[Seen, dict[str, float]]]:
    """Yield each step and each method's share; in batches, as records arrive."""
    rest = iter(seen)
    while batch := list(islice(rest, _BATCH)):
        columns = [way(batch) for way in ways.values()]
        for one, *shares in zip(batch, *columns, strict=True):
            yield one, dict(zip(ways, shares, strict=True))


def _score(score: Score, sums: Sums) -> Score:
    score.mixed_steps = sums.mixed_steps
    score.share = sums.true_mixed / sums.mixed_seconds
    score.whole_share = sums.true / sums.seconds
    for name in BY_STEP:
        score.mixed[name] = 100 * abs(sums.mixed[name] - sums.true_mixed) / sums.mixed_seconds
        score.whole[name] = 100 * abs(sums.whole[name] - sums.true) / sums.seconds
    for name, (seconds, estimated, true) in sums.paged.items():
        score.whole[name] = 100 * abs(estimated - true) / seconds
    requests = sums.reading_seconds / sums.running_seconds
    score.whole[REQUESTS] = 100 * abs(requests - score.whole_share)
    # An aggregated engine's name states one phase or the other: the better of the two.
    score.whole[NAME] = 100 * min(score.whole_share, 1 - score.whole_share)
    return score


def _all_by_tokens(steps: Sequence[Seen]) -> list[float]:
    return [_by_tokens(seen) for seen in steps]


def _by_tokens(seen: Seen) -> float:
    kind = kind_of(seen.step)
    if kind == wire.MIXED:
        context, generated = seen.step.context_tokens, seen.step.generation_tokens
        return token_share(context, generated) if context else 1.0
    return float(kind == wire.CONTEXT)
