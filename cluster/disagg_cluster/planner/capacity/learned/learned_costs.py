"""Step times learned by the engines of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from statistics import median

from disagg_cluster.planner.capacity.engine_costs import PhaseCosts, UnseenStepError
from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.planner.capacity.learned.learned_curve import LearnedCurve, Points, pooled
from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity

ALONE_ERROR = 0.1
"""Assumed relative deviation of engines of a kind from each other if only one was observed."""
MOST_CONTEXT = 4.0
"""Contexts up to this many times as long as observed are priced, in proportion."""


@dataclass(frozen=True, slots=True)
class LearnedSteps:
    """Step times that one engine exports; empty or None for those that it does not.

    `prefill` is by prompt tokens, `decode` by requests. `mixed_ratios` is by both: the time of such
    a step over that of its halves apart, the constant part counted once. `empty_seconds` is that
    part. `context_tokens` is the recent context of a decoding request. `error_ratio` is the
    relative standard deviation of all these times. The last two are the engine's own limits of a
    step.
    """

    prefill: Points
    decode: Points
    mixed_ratios: Mapping[tuple[float, float], float]
    empty_seconds: float | None = None
    context_tokens: float | None = None
    error_ratio: float | None = None
    max_num_batched_tokens: float | None = None
    max_num_seqs: float | None = None


@dataclass(frozen=True, slots=True)
class LearnedCosts(PhaseCosts):
    """Costs pooled over engines of one kind.

    A mixed step takes the time of its halves, less the constant part, times the ratio of the
    nearest observed mixture, but no less than each half alone. Contexts longer than observed
    prolong the part of a step that grows with the batch in proportion, which is an upper bound;
    shorter ones are assumed to save nothing.
    """

    shape: EngineShape
    relative_error: float
    prefill: LearnedCurve | None
    decode: LearnedCurve | None
    mixed_ratios: tuple[tuple[float, float, float], ...] = ()
    empty_seconds: float = 0.0
    context_tokens: float | None = None

    def _prompt_seconds(self, tokens: float, attended_tokens: float) -> float:
        """Time by tokens alone: they are assumed to attend to as many as they did recently."""
        if self.prefill is None:
            raise UnseenStepError("no step with a prompt was seen")
        return self.prefill.at(tokens)

    def _mixed_seconds(
        self, prompt_tokens: float, prompt_seconds: float, decodes: float, decode_seconds: float
    ) -> float:
        whole = max(prompt_seconds + decode_seconds - self.empty_seconds, 0.0)
        # Halves that overlap where they are equally long cannot where one is far longer.
        mixed = whole * self._mixed_ratio(prompt_tokens, decodes)
        return max(mixed, prompt_seconds, decode_seconds)

    def _decode_seconds(self, decodes: float, context_tokens: float) -> float:
        if self.decode is None:
            raise UnseenStepError("no step that decodes was seen")
        seconds = self.decode.at(decodes)
        if not self.context_tokens:
            return seconds
        longer = context_tokens / decodes / self.context_tokens
        if longer > MOST_CONTEXT:
            raise UnseenStepError(
                f"requests hold {self.context_tokens:.0f} KV tokens lately, and ones of "
                f"{context_tokens / decodes:.0f} are asked for"
            )
        constant = min(self.empty_seconds, seconds) or self.decode.at(0.0)
        return seconds + max(longer - 1, 0.0) * max(seconds - constant, 0.0)

    def _mixed_ratio(self, prompt_tokens: float, decodes: float) -> float:
        """The ratio of the mixture that is nearest by both sizes; 1 if none was observed."""
        if not self.mixed_ratios:
            return 1.0

        def distance(mixture: tuple[float, float, float]) -> float:
            tokens, requests, _ratio = mixture
            return max(tokens / prompt_tokens, prompt_tokens / tokens) + max(
                requests / decodes, decodes / requests
            )

        return min(self.mixed_ratios, key=distance)[2]


def learned_costs(
    engines: Sequence[LearnedSteps], shape: EngineShape
) -> LearnedCosts | UndecidedCapacity:
    """Costs of one kind of engine, pooled over its engines.

    Where engines report no limits of their steps those of `shape` stand in for them. The prompt
    tokens of a step are cut to the largest that was observed: larger ones may take less time per
    token, but none was observed. The assumed requests of a step are raised to the most that were.
    """
    prefill = pooled([engine.prefill for engine in engines])
    decode = pooled([engine.decode for engine in engines])
    if prefill is None and decode is None:
        if len(engines) == 1:
            return UndecidedCapacity("its only engine does not report its step times")
        return UndecidedCapacity(f"none of {len(engines)} engines reports its step times")
    if prefill is not None:
        limit = _median([engine.max_num_batched_tokens for engine in engines])
        most = min(limit or shape.max_num_batched_tokens, prefill.largest)
        shape = replace(shape, max_num_batched_tokens=max(1, int(most)))
    if decode is not None:
        limit = _median([engine.max_num_seqs for engine in engines])
        most = limit or max(shape.max_num_seqs, decode.largest)
        shape = replace(shape, max_num_seqs=max(1, int(most)))
    mixtures = {mixture for engine in engines for mixture in engine.mixed_ratios}
    return LearnedCosts(
        shape,
        _relative_error(engines, (prefill, decode)),
        prefill,
        decode,
        tuple(
            (
                *mixture,
                median(e.mixed_ratios[mixture] for e in engines if mixture in e.mixed_ratios),
            )
            for mixture in sorted(mixtures)
        ),
        _median([e.empty_seconds for e in engines]) or 0.0,
        _median([e.context_tokens for e in engines]),
    )


def _relative_error(
    engines: Sequence[LearnedSteps], curves: Sequence[LearnedCurve | None]
) -> float:
    """Relative error for any such engine: the deviation of engines and the error of each."""
    spreads = [curve.spread for curve in curves if curve and curve.spread is not None]
    own_error = _median([engine.error_ratio for engine in engines])
    return hypot(max(spreads, default=ALONE_ERROR), own_error or 0.0)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
