"""Step times from a profile of `disagg-node tune`, by step size and by length."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from disagg_cluster.planner.capacity.engine_costs import PhaseCosts, UnseenStepError
from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.planner.capacity.learned.learned_costs import ALONE_ERROR, MOST_CONTEXT
from disagg_cluster.planner.capacity.learned.learned_curve import LearnedCurve, pooled
from disagg_cluster.planner.capacity.learned.tune_profile import TimedContext, TuneProfile
from disagg_exporter.model import Role

Curves = Mapping[float, LearnedCurve]
_FAR_APART = 2.0
_USUAL_REQUESTS = 256


class NoSuchPhaseError(ValueError):
    """A profile without a phase that an engine of this role needs."""


@dataclass(frozen=True, slots=True)
class ProfileCosts(PhaseCosts):
    """Step times as measured on one engine.

    Between two lengths, and above the longest, time grows linearly with the number of earlier
    tokens that each token attends to, as attention does; below the shortest it is constant. A mixed
    step takes the time of its halves, less what both take however small they are.

    Attributes:
        shape: The engine.
        prefill: Seconds by tokens of a step, by prompt length.
        decode: Seconds by requests, by context.
        attended_seconds: Seconds of a prompt token for each earlier token that it attends to.
        relative_error: As for any single engine that represents its kind.
    """

    shape: EngineShape
    prefill: Curves
    decode: Curves
    attended_seconds: float = 0.0
    relative_error: float = ALONE_ERROR

    def _prompt_seconds(self, tokens: float, attended_tokens: float) -> float:
        if not self.prefill:
            raise UnseenStepError("the profile has no step with a prompt")
        return _by_length(
            self.prefill,
            tokens,
            # Steps smaller than the prompt were timed with a prompt of their own size, so what
            # chunks of longer ones and cached tokens cost is known from the largest step.
            lambda length: min(length, tokens) / 2,
            attended_tokens,
            tokens * self.attended_seconds,
        )

    def _mixed_seconds(
        self, prompt_tokens: float, prompt_seconds: float, decodes: float, decode_seconds: float
    ) -> float:
        whole = prompt_seconds + decode_seconds - self._least_seconds
        return max(whole, prompt_seconds, decode_seconds)

    @property
    def _least_seconds(self) -> float:
        curves = (*self.prefill.values(), *self.decode.values())
        return min(curve.seconds[0] for curve in curves)

    def _decode_seconds(self, decodes: float, context_tokens: float) -> float:
        if not self.decode:
            raise UnseenStepError("the profile has no step that decodes")
        return _by_length(self.decode, decodes, lambda length: length, context_tokens / decodes)


def _by_length(
    curves: Curves,
    size: float,
    attended_at: Callable[[float], float],
    attended: float,
    slope_beyond: float | None = None,
) -> float:
    """Seconds of a step of this size, with tokens that attend to `attended` earlier ones.

    `slope_beyond` is what each further one adds beyond those that were timed, as much as between
    the last two lengths if None.
    """
    longest = max(curves)
    if attended > MOST_CONTEXT * longest:
        raise UnseenStepError(
            f"lengths up to {longest:.0f} tokens were timed, and tokens that attend to "
            f"{attended:.0f} are asked for: tune with longer ones"
        )
    timed: dict[float, float] = {}
    for length, curve in sorted(curves.items()):
        timed.setdefault(attended_at(length), curve.at(size))
    (low, low_seconds), *further = timed.items()
    seconds, slope = low_seconds, 0.0
    for high, high_seconds in further:
        # A longer context never costs less.
        slope = max(high_seconds - low_seconds, 0.0) / (high - low)
        seconds += slope * min(max(attended - low, 0.0), high - low)
        low, low_seconds = high, max(high_seconds, low_seconds)
    beyond = slope if slope_beyond is None else slope_beyond
    return seconds + beyond * max(attended - low, 0.0)


def profile_costs(
    profile: TuneProfile,
    role: Role,
    gpu_name: str,
    gpus: int,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
) -> ProfileCosts:
    """Costs of an engine of a role from a profile, which also gives the limits that are None.

    Raises:
        NoSuchPhaseError: The profile lacks what the role needs.
    """
    needed = {
        "prefill": profile.prefill is not None or role is Role.DECODE,
        "decode": profile.decode is not None or role is Role.PREFILL,
    }
    for phase, present in needed.items():
        if not present:
            raise NoSuchPhaseError(
                f"the profile has no {phase}: `disagg-node tune {phase} --profile` adds it"
            )
    lengths = profile.prefill.lengths if profile.prefill else ()
    contexts = profile.decode.contexts if profile.decode else ()
    prefill = {
        float(each.prompt_tokens): curve
        for each in lengths
        if (curve := pooled([{step.size: step.seconds for step in each.steps}]))
    }
    decode = {
        float(each.context_tokens): curve
        for each in contexts
        if (curve := pooled([{step.size: step.seconds for step in each.steps}]))
    }
    largest = int(max((curve.largest for curve in prefill.values()), default=8192))
    recommended = profile.prefill.max_num_batched_tokens if profile.prefill else None
    shape = EngineShape(
        gpu_name,
        gpus,
        profile.kv_cache_tokens,
        None,
        min(max_num_batched_tokens or recommended or largest, largest) if prefill else largest,
        max_num_seqs or _most_requests(contexts, profile.kv_cache_tokens),
    )
    return ProfileCosts(shape, prefill, decode, _attended_seconds(prefill))


def _attended_seconds(prefill: Curves) -> float:
    """What a prompt token adds for each earlier token, by the largest step of both end lengths.

    0 if prompts there hardly differ in length: the difference of their times is mostly noise.
    """
    if not prefill:
        return 0.0
    short, long = min(prefill), max(prefill)
    size = min(prefill[short].largest, prefill[long].largest)
    low, high = min(short, size) / 2, min(long, size) / 2
    if high < _FAR_APART * low:
        return 0.0
    more_seconds = prefill[long].at(size) - prefill[short].at(size)
    return max(more_seconds, 0.0) / (size * (high - low))


def _most_requests(contexts: tuple[TimedContext, ...], kv_cache_tokens: float | None) -> int:
    """The requests that the engine runs at once, if it was seen to refuse more for lack of seats.

    Otherwise what is usual, or the most that were timed: a batch was not larger because it missed
    the target, requests ended too early, the cache was full, or nobody asked for more.
    """
    timed = max((step.size for each in contexts for step in each.steps), default=1)
    seats = [
        each.crowded_at
        for each in contexts
        if each.crowded_at
        and each.crowded_at >= timed
        and (each.crowded_at + 1) * each.context_tokens < (kv_cache_tokens or math.inf)
    ]
    return max(seats) if seats else max(timed, _USUAL_REQUESTS)
