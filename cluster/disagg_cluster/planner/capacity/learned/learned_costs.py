"""What steps take by what the engines of a cluster have shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from statistics import median

from disagg_cluster.planner.capacity.engine_costs import CostsOfHalves, UnseenStepError
from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.planner.capacity.learned.learned_curve import LearnedCurve, Points, pooled
from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity

ALONE_ERROR = 0.1
"""How far one engine alone is taken to stray from its like, where nothing else says."""
MOST_CONTEXT = 4.0
"""How many times as long a context as was seen is priced, in proportion."""


@dataclass(frozen=True, slots=True)
class LearnedSteps:
    """What one engine tells of its steps; empty and None for what it does not.

    `prefill` is by prompt tokens, `decode` by requests. `together` is by both: the time of such a
    mixed step over what its halves take apart, the constant share counted once. `empty_seconds` is
    that share. `context_tokens` are those of a decoding request lately. `error_ratio` is one
    standard deviation of all this, over it.
    """

    prefill: Points
    decode: Points
    together: Mapping[tuple[float, float], float]
    empty_seconds: float | None = None
    context_tokens: float | None = None
    error_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class LearnedCosts(CostsOfHalves):
    """Costs pooled over engines of one kind.

    A mixed step takes what its halves do, less the constant share, times what such mixtures were
    seen to take more; at most at the ends of what was seen. Requests with longer contexts than
    were seen make the part of a step that grows with the batch longer in proportion, which is the
    most it can be; shorter ones are taken to save nothing.
    """

    shape: EngineShape
    relative_error: float
    prefill: LearnedCurve | None
    decode: LearnedCurve | None
    together: tuple[tuple[float, float, float], ...] = ()
    empty_seconds: float = 0.0
    context_tokens: float | None = None

    def _prompt_seconds(self, tokens: float, attended_tokens: float) -> float:
        """What prompt tokens attend to is taken to be as it was lately."""
        if self.prefill is None:
            raise UnseenStepError("no step with a prompt was seen")
        return self.prefill.at(tokens)

    def _mixed_seconds(
        self, prompt_tokens: float, prompt_seconds: float, decodes: float, decode_seconds: float
    ) -> float:
        whole = max(prompt_seconds + decode_seconds - self.empty_seconds, 0.0)
        return whole * self._together_ratio(prompt_tokens, decodes)

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

    def _together_ratio(self, prompt_tokens: float, decodes: float) -> float:
        """Of the mixture that is nearest by both sizes; 1 where none was seen."""
        if not self.together:
            return 1.0

        def distance(seen: tuple[float, float, float]) -> float:
            tokens, requests, _ratio = seen
            return max(tokens / prompt_tokens, prompt_tokens / tokens) + max(
                requests / decodes, decodes / requests
            )

        return min(self.together, key=distance)[2]


def learned_costs(
    engines: Sequence[LearnedSteps], shape: EngineShape
) -> LearnedCosts | UndecidedCapacity:
    """The costs of one kind of engine, pooled over those there are.

    `shape.max_num_batched_tokens` is cut to the largest step with a prompt that was seen: larger
    ones may be faster by the token, and nobody has seen it. `shape.max_num_seqs` is no less than
    the largest batch that was.
    """
    prefill = pooled([engine.prefill for engine in engines])
    decode = pooled([engine.decode for engine in engines])
    if prefill is None and decode is None:
        if len(engines) == 1:
            return UndecidedCapacity("its only engine does not tell what its steps take")
        return UndecidedCapacity(f"none of {len(engines)} engines tells what its steps take")
    if prefill is not None:
        most = max(1, min(shape.max_num_batched_tokens, int(prefill.largest)))
        shape = replace(shape, max_num_batched_tokens=most)
    if decode is not None:
        shape = replace(shape, max_num_seqs=max(shape.max_num_seqs, int(decode.largest)))
    mixtures = {mixture for engine in engines for mixture in engine.together}
    return LearnedCosts(
        shape,
        _relative_error(engines, (prefill, decode)),
        prefill,
        decode,
        tuple(
            (*mixture, median(e.together[mixture] for e in engines if mixture in e.together))
            for mixture in sorted(mixtures)
        ),
        _median([e.empty_seconds for e in engines]) or 0.0,
        _median([e.context_tokens for e in engines]),
    )


def _relative_error(
    engines: Sequence[LearnedSteps], curves: Sequence[LearnedCurve | None]
) -> float:
    """Of an engine as they are: how far they are from each other, and how unsure each is."""
    spreads = [curve.spread for curve in curves if curve and curve.spread is not None]
    told = _median([engine.error_ratio for engine in engines])
    return hypot(max(spreads, default=ALONE_ERROR), told or 0.0)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
