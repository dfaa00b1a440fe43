"""Whether engines should be mixed or separate: both on the same GPUs, at the same targets.

Gain = largest load of the best integer split / largest load of mixed engines (or the other way
round for pools that are separate today). Which of the two is better follows from step times alone:
how long decoding waits for prompts, what batches on fewer engines save or cost, how long KV
transfers take, and what is lost because engines cannot be divided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from disagg_cluster.planner.capacity.engine_costs import EngineCosts
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.separation.engines import Engines, missing_inputs
from disagg_cluster.planner.separation.kv_link import KvLink
from disagg_cluster.planner.separation.phase_errors import PhaseError, phase_errors, stretched
from disagg_cluster.planner.separation.pools import (
    Demand,
    MixedEngines,
    NoCapacityError,
    PoolPair,
    SplitPools,
    mixed_engines,
)
from disagg_cluster.planner.separation.reasons import reasons
from disagg_cluster.planner.separation.verdict import (
    Advice,
    Gain,
    InterferenceSeconds,
    SeparationVerdict,
    UndecidedSeparation,
)
from disagg_exporter.model.counted import counted

FORMULA_ERROR = 0.05
"""Standard deviation of a gain due to the capacity formulas: `make bench-separation`."""
LINK_ERROR = 0.2
"""The same if links limit the pools, which is known less well."""


def separation(
    engines: Engines,
    mix: RequestMix,
    targets: Targets,
    gpus: int,
    link: KvLink | None,
    interference: InterferenceSeconds | None = None,
) -> SeparationVerdict | UndecidedSeparation:
    """Whether engines that run mixed today should be separated.

    Args:
        engines: Engines that could be run.
        mix: The requests; their rate does not matter.
        targets: The targets of both sides.
        gpus: The number of GPUs, the same for both sides.
        link: The link that carries KV; None if not known.
        interference: Cost of mixed steps as the engines measured it.

    Raises:
        ValueError: `gpus` is below 1.
    """
    found = _compare(engines, mix, targets, gpus, link)
    if isinstance(found, UndecidedSeparation):
        return found
    gain = found.gain(gpus)
    advice = {True: Advice.SEPARATE, False: Advice.STAY_MIXED, None: Advice.UNDECIDED}
    interference_gain = None if interference is None else interference.gain_ratio
    return SeparationVerdict(
        advice[gain.worth_it],
        gain,
        gpus,
        found.mixed,
        found.split,
        interference_gain,
        reasons(gain, found.mixed, found.split, gpus, interference_gain),
    )


def merging(
    engines: Engines,
    mix: RequestMix,
    targets: Targets,
    today: tuple[int, int],
    link: KvLink | None,
) -> SeparationVerdict | UndecidedSeparation:
    """Whether pools that are separate today should be merged into mixed engines.

    `engines` has one kind of prefill and one of decode engine, and `today` is the number of each.
    If another split would serve more than today's, a reason says so.

    Raises:
        ValueError: One of the two has no engine, or several kinds.
    """
    if len(engines.prefill) != 1 or len(engines.decode) != 1 or min(today) < 1:
        raise ValueError("pools of today have one kind of engine each, and one engine at least")
    [prefill], [decode] = engines.prefill, engines.decode
    gpus = today[0] * prefill.shape.gpus + today[1] * decode.shape.gpus
    found = _compare(engines, mix, targets, gpus, link, today)
    if isinstance(found, UndecidedSeparation):
        return found
    gain = found.gain(gpus).inverse
    advice = {True: Advice.MERGE, False: Advice.STAY_SEPARATE, None: Advice.UNDECIDED}
    why = reasons(gain, found.mixed, found.split, gpus, None)
    best = found.pair.best(gpus)
    if best is not None and best.requests_per_second > found.split.requests_per_second:
        decoders = counted(best.decode_engines, "decode engine")
        why += (
            f"{best.prefill_engines} prefill and {decoders} would take "
            f"{best.requests_per_second / found.split.requests_per_second:.2f} times as much as "
            "today's split",
        )
    return SeparationVerdict(advice[gain.worth_it], gain, gpus, found.mixed, found.split, None, why)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The best mixed pool and the best split, with the step times of their engines."""

    mixed_costs: EngineCosts
    prefill_costs: EngineCosts
    decode_costs: EngineCosts
    demand: Demand
    link: KvLink
    mixed: MixedEngines
    split: SplitPools
    today: tuple[int, int] | None

    @property
    def ratio(self) -> float:
        return _ratio(self.split, self.mixed)

    @property
    def pair(self) -> PoolPair:
        return PoolPair(self.prefill_costs, self.decode_costs, self.demand, self.link)

    def gain(self, gpus: int) -> Gain:
        """The gain of separating, with its uncertainty.

        Each possible error is applied alone, upwards and downwards. Its effects on the logarithm
        of the ratio are added as those of independent errors.
        """
        ends = [
            [self._ratio_if(error, factor, gpus) for factor in _factors(error)]
            for error in phase_errors((self.mixed_costs, self.prefill_costs, self.decode_costs))
        ]
        if not 0 < self.ratio < math.inf:
            reached = [self.ratio, *(end for both in ends for end in both)]
            return self._as_far_as_seen(Gain(self.ratio, min(reached), max(reached)))
        variance = (LINK_ERROR if self.split.limited_by == "link" else FORMULA_ERROR) ** 2
        for both in ends:
            moved = [abs(math.log(end / self.ratio)) for end in both if 0 < end < math.inf]
            # If one way meets no targets at an end, the effect of the error has no measure.
            variance += max(moved if len(moved) == len(both) else [1.0, *moved]) ** 2
        return self._as_far_as_seen(Gain.of(self.ratio, math.sqrt(variance)))

    def _as_far_as_seen(self, gain: Gain) -> Gain:
        """The gain without an end where a side may serve more than was ever seen of its engines."""
        low = 0.0 if self.mixed.bound == "unseen" else gain.low
        high = math.inf if self.split.bound == "unseen" else gain.high
        return Gain(gain.ratio, low, high)

    def _ratio_if(self, error: PhaseError, factor: float, gpus: int) -> float:
        """The ratio if this time is off by that factor, with the split chosen anew."""
        mixed_costs, prefill, decode = (
            stretched(costs, error, factor)
            for costs in (self.mixed_costs, self.prefill_costs, self.decode_costs)
        )
        pair = PoolPair(prefill, decode, self.demand, self.link)
        try:
            mixed = mixed_engines(mixed_costs, self.demand, gpus)
            split = pair.of(*self.today) if self.today else pair.best(gpus)
        except NoCapacityError:
            return 0.0
        return _ratio(split, mixed) if split and mixed else 0.0


def _ratio(split: SplitPools, mixed: MixedEngines) -> float:
    """One load over the other; infinite if only the second is 0, 0 if both are."""
    if mixed.requests_per_second:
        return split.requests_per_second / mixed.requests_per_second
    return math.inf if split.requests_per_second else 0.0


def _factors(error: PhaseError) -> tuple[float, float]:
    return 1 + error.relative_error, 1 / (1 + error.relative_error)


def _compare(
    engines: Engines,
    mix: RequestMix,
    targets: Targets,
    gpus: int,
    link: KvLink | None,
    today: tuple[int, int] | None = None,
) -> _Comparison | UndecidedSeparation:
    if gpus < 1:
        raise ValueError(f"gpus is {gpus}, not 1 or more")
    missing = missing_inputs(engines, link)
    if missing or link is None:
        return UndecidedSeparation(tuple(missing))
    demand = Demand(mix, targets)
    try:
        pools = [(mixed_engines(costs, demand, gpus), costs) for costs in engines.mixed]
        pairs = [
            (PoolPair(prefill, decode, demand, link), prefill, decode)
            for prefill in engines.prefill
            for decode in engines.decode
        ]
        splits = [
            (pair.of(*today) if today else pair.best(gpus), prefill, decode)
            for pair, prefill, decode in pairs
        ]
    except NoCapacityError as error:
        return UndecidedSeparation((str(error),))
    mixed = max(
        ((pool, costs) for pool, costs in pools if pool is not None),
        key=lambda found: found[0].requests_per_second,
        default=None,
    )
    best = max(
        ((split, prefill, decode) for split, prefill, decode in splits if split is not None),
        key=lambda found: found[0].requests_per_second,
        default=None,
    )
    if mixed is None:
        missing.append(f"a mixed engine that fits on {counted(gpus, 'GPU')}")
    if best is None:
        room = counted(gpus, "GPU")
        missing.append(f"a prefill and a decode engine that fit on {room} together")
    if mixed is None or best is None:
        return UndecidedSeparation(tuple(missing))
    if not (mixed[0].requests_per_second or best[0].requests_per_second):
        return UndecidedSeparation(
            ("engines that keep the targets under any load, mixed or separate",)
        )
    return _Comparison(mixed[1], best[1], best[2], demand, link, mixed[0], best[0], today)
