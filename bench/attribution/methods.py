"""Ways to say which part of an engine's time was prefill, all held against the same steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bench.attribution.engines import Seen

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.stepcost import StepCost
from disagg_exporter.stepsplit import StepSplit, token_share
from disagg_exporter.stepwork import StepWork

FULL, FPM, RECORDS, TOKENS = "full features", "FPM's", "vLLM's records", "token share"
REQUESTS, NAME = "request time", "pod name"
BY_STEP = (FULL, FPM, RECORDS, TOKENS)
METHODS = (*BY_STEP, REQUESTS, NAME)


@dataclass(slots=True)
class Score:
    """One engine at one load: errors of the share of prefill in percentage points.

    `mixed` is over the time of mixed steps only, `whole` over all of the engine's step time,
    which is what its counters show. A method that does not look at steps has no `mixed`.
    """

    engine: str
    prompt_tokens: float
    steps: int = 0
    mixed_steps: int = 0
    share: float = 0.0
    whole_share: float = 0.0
    trusted: dict[str, bool] = field(default_factory=dict)
    residual_ratio: dict[str, float | None] = field(default_factory=dict)
    mixed: dict[str, float] = field(default_factory=dict)
    whole: dict[str, float] = field(default_factory=dict)


class Features:
    """Our model, given the features of each step by `look`."""

    def __init__(self, look: Callable[[Seen], StepWork]) -> None:
        self.cost = StepCost()
        self._look = look

    def __call__(self, seen: Seen) -> float:
        """The step's share of prefill, by what is known before it; then learn from it."""
        work = self._look(seen)
        share = None
        if not work.decode_requests or not work.prefill_tokens:
            share = float(bool(work.prefill_tokens))
        elif self.cost.trusted:
            share = self.cost.prefill_share(work)
        self.cost.learn(work, seen.seconds)
        return _by_tokens(seen) if share is None else share


class Records:
    """Our model, given what vLLM's records say."""

    def __init__(self) -> None:
        self.split = StepSplit()

    def __call__(self, seen: Seen) -> float:
        """The step's share of prefill as the books take it."""
        share = self.split.settle(seen.step, seen.kind, seen.step.elapsed_ns)
        if seen.kind == wire.MIXED:
            return share
        return float(seen.kind == wire.CONTEXT)


def measure(engine: str, prompt_tokens: float, seen: Iterable[Seen], warm_steps: int) -> Score:
    """Let all methods look at an engine's steps; the first `warm_steps` are for learning."""
    score = Score(engine, prompt_tokens)
    full, fpm, records = Features(lambda s: s.full), Features(lambda s: s.fpm), Records()
    ways = {FULL: full, FPM: fpm, RECORDS: records, TOKENS: _by_tokens}
    mixed, whole = dict.fromkeys(BY_STEP, 0.0), dict.fromkeys(BY_STEP, 0.0)
    mixed_seconds = seconds = true_mixed = true_whole = 0.0
    reading_seconds = running_seconds = 0.0
    for number, one in enumerate(seen):
        shares = {name: way(one) for name, way in ways.items()}
        if number < warm_steps:
            continue
        score.steps += 1
        score.mixed_steps += one.mixed
        seconds += one.seconds
        true_whole += one.seconds * one.share
        reading_seconds += one.seconds * one.reading
        running_seconds += one.seconds * one.running
        for name, share in shares.items():
            whole[name] += one.seconds * share
        if one.mixed:
            mixed_seconds += one.seconds
            true_mixed += one.seconds * one.share
            for name, share in shares.items():
                mixed[name] += one.seconds * share
    score.share, score.whole_share = true_mixed / mixed_seconds, true_whole / seconds
    for name in BY_STEP:
        score.mixed[name] = 100 * abs(mixed[name] - true_mixed) / mixed_seconds
        score.whole[name] = 100 * abs(whole[name] - true_whole) / seconds
    requests = reading_seconds / running_seconds
    score.whole[REQUESTS] = 100 * abs(requests - score.whole_share)
    # An aggregated engine's name says one phase or the other: the kinder of the two.
    score.whole[NAME] = 100 * min(score.whole_share, 1 - score.whole_share)
    for name, cost in ((FULL, full.cost), (FPM, fpm.cost), (RECORDS, records.split)):
        score.trusted[name] = cost.state.trusted
        score.residual_ratio[name] = cost.state.residual_ratio
    return score


def _by_tokens(seen: Seen) -> float:
    if seen.kind == wire.MIXED:
        return token_share(seen.step) if seen.step.context_tokens else 1.0
    return float(seen.kind == wire.CONTEXT)
