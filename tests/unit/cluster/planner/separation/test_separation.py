"""Whether engines should be mixed or separate, at the same GPUs and targets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.engine_costs import UnseenStepError
from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.planner.capacity.priced_costs import priced_costs
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.separation.engines import Engines
from disagg_cluster.planner.separation.kv_link import KvLink
from disagg_cluster.planner.separation.separation import merging, separation
from disagg_cluster.planner.separation.verdict import (
    Advice,
    InterferenceSeconds,
    SeparationVerdict,
    UndecidedSeparation,
)
from disagg_cluster.simulator.engine.hardware import H100, LLAMA_8B

NO_WIRE = KvLink(math.inf)
NETWORK = KvLink(40e9, 0.002)
SMALL = EngineShape("GPU", 1, 400_000.0, 131_072.0)
LOOSE = Targets(ttft_seconds=60.0, itl_seconds=10.0)
CHAT = RequestMix(1.0, 1000.0, 200.0, prompt_dispersion=0.0, output_dispersion=0.0)


@dataclass(frozen=True, slots=True)
class LineCosts:
    """A fake whose step times are linear in everything that a step contains."""

    shape: EngineShape = SMALL
    relative_error: float = 0.05
    step: float = 0.005
    prompt_token: float = 20e-6
    decode: float = 50e-6
    context_token: float = 2e-8

    def step_seconds(
        self,
        prompt_tokens: float,
        attended_tokens: float,
        decodes: float,
        decode_context_tokens: float,
    ) -> float:
        """Time of a step."""
        decoding = self.decode * decodes + self.context_token * decode_context_tokens
        return self.step + self.prompt_token * prompt_tokens + decoding


@dataclass(frozen=True, slots=True)
class QuietCosts(LineCosts):
    """A fake whose step times are known for a few requests only."""

    def step_seconds(
        self,
        prompt_tokens: float,
        attended_tokens: float,
        decodes: float,
        decode_context_tokens: float,
    ) -> float:
        """Time of a step with up to eight requests."""
        if decodes > 8:
            raise UnseenStepError("no larger batch was seen")
        return LineCosts.step_seconds(
            self, prompt_tokens, attended_tokens, decodes, decode_context_tokens
        )


@dataclass(frozen=True, slots=True)
class UnseenCosts(LineCosts):
    """A fake whose step times are not known."""

    def step_seconds(
        self,
        prompt_tokens: float,
        attended_tokens: float,
        decodes: float,
        decode_context_tokens: float,
    ) -> float:
        """Always raise."""
        raise UnseenStepError("no step was seen")


COSTS = LineCosts()
QUIET = QuietCosts()
ALIKE = Engines((COSTS,), (COSTS,), (COSTS,))

mixes = st.builds(
    RequestMix,
    requests_per_second=st.just(1.0),
    prompt_tokens=st.floats(100, 8000),
    output_tokens=st.floats(20, 1000),
    prompt_dispersion=st.floats(0, 1),
    output_dispersion=st.floats(0, 1),
)
tight = st.builds(Targets, ttft_seconds=st.floats(0.5, 5), itl_seconds=st.floats(0.01, 0.1))


def verdict_of(
    mix: RequestMix,
    targets: Targets,
    gpus: int = 8,
    link: KvLink = NETWORK,
    engines: Engines = ALIKE,
) -> SeparationVerdict:
    verdict = separation(engines, mix, targets, gpus, link)
    assert isinstance(verdict, SeparationVerdict), verdict
    return verdict


@given(mixes, st.integers(2, 12))
@settings(max_examples=10, deadline=None)
def test_separating_gains_hardly_anything_far_from_any_target(mix: RequestMix, gpus: int) -> None:
    """What remains is the host's and the weights' part of steps, once for both phases."""
    cheap = LineCosts(replace(SMALL, kv_tokens=1e12, max_num_seqs=64), step=1e-6)
    engines = Engines((cheap,), (cheap,), (cheap,))

    verdict = verdict_of(mix, LOOSE, gpus, NO_WIRE, engines)

    assert verdict.gain.ratio <= 1.05


@given(mixes, tight, st.floats(1e9, 1e11), st.floats(1.5, 20))
@settings(max_examples=10, deadline=None)
def test_a_slower_link_never_raises_the_gain(
    mix: RequestMix, targets: Targets, bytes_per_second: float, factor: float
) -> None:
    fast = separation(ALIKE, mix, targets, 8, KvLink(bytes_per_second))
    slow = separation(ALIKE, mix, targets, 8, KvLink(bytes_per_second / factor))

    if isinstance(fast, SeparationVerdict) and isinstance(slow, SeparationVerdict):
        assert slow.gain.ratio <= fast.gain.ratio * 1.01


@given(mixes, tight, st.floats(0, 0.3))
@settings(max_examples=10, deadline=None)
def test_the_interval_holds_the_gain(mix: RequestMix, targets: Targets, error: float) -> None:
    costs = LineCosts(relative_error=error)

    found = separation(Engines((costs,), (costs,), (costs,)), mix, targets, 8, NETWORK)

    if isinstance(found, SeparationVerdict):
        assert found.gain.low <= found.gain.ratio <= found.gain.high


def test_the_interval_grows_with_the_error_of_prices() -> None:
    widths = []
    for error in (0.0, 0.05, 0.15):
        costs = LineCosts(relative_error=error)
        engines = Engines((costs,), (costs,), (costs,))
        gain = verdict_of(CHAT, Targets(1.0, 0.02), engines=engines).gain
        widths.append(gain.high / gain.low)

    assert widths == sorted(widths)
    assert widths[0] > 1.1
    assert widths[2] > widths[0] * 1.1


def test_long_prompts_beside_a_tight_token_target_are_separated() -> None:
    mix = RequestMix(1.0, 6000.0, 150.0, prompt_dispersion=0.0, output_dispersion=0.0)

    verdict = verdict_of(mix, Targets(ttft_seconds=3.0, itl_seconds=0.012))

    assert verdict.advice is Advice.SEPARATE
    assert verdict.gain.low > 1
    assert verdict.mixed.bound == "itl"


def test_short_prompts_on_few_gpus_stay_mixed() -> None:
    mix = RequestMix(1.0, 100.0, 400.0, prompt_dispersion=0.0, output_dispersion=0.0)

    verdict = verdict_of(mix, Targets(ttft_seconds=2.0, itl_seconds=0.05), gpus=2)

    assert verdict.advice is Advice.STAY_MIXED
    assert verdict.gain.high < 1
    assert verdict.split.granularity_loss > 0.2
    assert any(reason.startswith("whole engines cost") for reason in verdict.reasons)


def test_a_slow_link_turns_a_gain_into_a_loss() -> None:
    mix = RequestMix(1.0, 6000.0, 150.0, prompt_dispersion=0.0, output_dispersion=0.0)
    targets = Targets(ttft_seconds=3.0, itl_seconds=0.012)

    verdict = verdict_of(mix, targets, link=KvLink(0.5e9))

    assert verdict.advice is Advice.STAY_MIXED
    assert verdict.split.limited_by == "link"
    assert verdict.split.transfer_seconds == pytest.approx(6000 * 131_072 / 0.5e9)


def test_splitting_one_group_of_gpus_may_lose() -> None:
    """Four of eight GPUs have less cache beside the weights, and read these more slowly."""
    whole = LineCosts(replace(SMALL, gpus=8, kv_tokens=2e6), step=0.004, prompt_token=5e-6)
    half = LineCosts(replace(SMALL, gpus=4, kv_tokens=4e5), step=0.008, prompt_token=10e-6)
    targets = Targets(ttft_seconds=2.0, itl_seconds=0.012)

    verdict = verdict_of(CHAT, targets, 8, NETWORK, Engines((whole,), (half,), (half,)))

    assert verdict.advice is Advice.STAY_MIXED
    assert (verdict.split.prefill_engines, verdict.split.decode_engines) == (1, 1)


def test_the_best_of_several_shapes_is_chosen() -> None:
    slow = LineCosts(replace(SMALL, gpu_name="old GPU"), step=0.02, prompt_token=80e-6)
    engines = Engines((slow, COSTS), (slow, COSTS), (COSTS, slow))

    verdict = verdict_of(CHAT, Targets(1.0, 0.02), engines=engines)

    names = (verdict.mixed.shape, verdict.split.prefill, verdict.split.decode)
    assert [shape.gpu_name for shape in names] == ["GPU", "GPU", "GPU"]


def test_all_that_is_missing_is_named_at_once() -> None:
    unknown = LineCosts(replace(SMALL, kv_bytes_per_token=None))

    verdict = separation(Engines((), (unknown,), (COSTS,)), CHAT, LOOSE, 8, None)

    assert isinstance(verdict, UndecidedSeparation)
    assert verdict.missing == (
        "what steps of mixed engines cost",
        "the bandwidth of the links that would carry KV",
        "the KV bytes a token takes on 1 x GPU",
    )


@pytest.mark.parametrize(
    ("engines", "targets", "gpus", "why"),
    [
        (ALIKE, LOOSE, 1, "a prefill and a decode engine that fit on 1 GPU together"),
        (ALIKE, Targets(1.0, 0.001), 8, "engines that keep the targets under any load, mixed or"),
        (
            Engines((COSTS,), (COSTS,), (UnseenCosts(),)),
            LOOSE,
            8,
            "the capacity of decode engines of 1 x GPU: no step was seen",
        ),
    ],
)
def test_impossible_comparisons_are_undecided(
    engines: Engines, targets: Targets, gpus: int, why: str
) -> None:
    verdict = separation(engines, CHAT, targets, gpus, NETWORK)

    assert isinstance(verdict, UndecidedSeparation)
    assert why in verdict.reason


def test_the_gain_is_infinite_if_only_pools_meet_the_targets() -> None:
    slow = LineCosts(replace(SMALL, gpu_name="old GPU"), step=0.05)

    verdict = verdict_of(CHAT, Targets(1.0, 0.02), engines=Engines((slow,), (COSTS,), (COSTS,)))

    assert verdict.mixed.requests_per_second == 0
    assert verdict.gain.ratio == math.inf
    assert verdict.advice is Advice.SEPARATE


@pytest.mark.parametrize(
    ("engines", "ends", "reason"),
    [
        (Engines((QUIET,), (COSTS,), (COSTS,)), (0.0, None), "how much mixed engines serve"),
        (Engines((COSTS,), (COSTS,), (QUIET,)), (None, math.inf), "how much separate engines"),
        (Engines((QUIET,), (QUIET,), (QUIET,)), (0.0, math.inf), "how much mixed and separate"),
    ],
)
def test_loads_that_only_what_was_seen_bounds_decide_nothing_on_their_side(
    engines: Engines, ends: tuple[float | None, float | None], reason: str
) -> None:
    """Engines that never ran more than four requests may serve far more than that shows."""
    targets = Targets(1.0, 0.05)
    verdict = verdict_of(CHAT, targets, engines=engines)
    merged = merging(engines, CHAT, targets, (4, 4), NO_WIRE)

    low, high = ends
    assert low is None or verdict.gain.low == low
    assert high is None or verdict.gain.high == high
    assert verdict.advice is Advice.UNDECIDED
    assert any(each.startswith(reason) for each in verdict.reasons)
    assert isinstance(merged, SeparationVerdict)
    assert merged.advice is Advice.UNDECIDED


def test_pools_that_meet_no_targets_are_merged() -> None:
    slow_wire = KvLink(1e6)

    verdict = merging(ALIKE, CHAT, Targets(1.0, 0.02), (4, 4), slow_wire)

    assert isinstance(verdict, SeparationVerdict)
    assert verdict.split.requests_per_second == 0
    assert verdict.advice is Advice.MERGE


def test_no_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="gpus is 0, not 1 or more"):
        separation(ALIKE, CHAT, LOOSE, 0, NETWORK)


def test_the_engines_own_measurement_is_reported_beside_the_model() -> None:
    targets = Targets(1.0, 0.02)

    verdict = separation(ALIKE, CHAT, targets, 8, NETWORK, InterferenceSeconds(14.0, 2.0, 100.0))

    assert isinstance(verdict, SeparationVerdict)
    assert verdict.interference_gain == pytest.approx(100 / 88)
    assert any("without any model, the gain is 1.14 at" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("seconds", [(1.0, 0.0, 0.0), (9.0, 0.0, 9.0), (0.0, math.inf, 1.0)])
def test_engines_that_lost_more_than_they_worked_are_refused(
    seconds: tuple[float, float, float],
) -> None:
    with pytest.raises(ValueError, match="lost to mixing"):
        InterferenceSeconds(*seconds)


def test_reasons_say_what_was_compared_and_what_limits_it() -> None:
    verdict = verdict_of(CHAT, Targets(1.0, 0.02))

    mixed, split, wire, *_ = verdict.reasons
    assert mixed.startswith("8 mixed engines of 1 x GPU take ")
    assert " prefill engine" in split
    assert " decode engine" in split
    assert "bound by " in split
    assert wire == "the KV of a prompt travels 5.28 ms"


def test_pools_with_an_idle_side_are_merged() -> None:
    mix = RequestMix(1.0, 100.0, 400.0, prompt_dispersion=0.0, output_dispersion=0.0)

    verdict = merging(ALIKE, mix, Targets(2.0, 0.05), (4, 4), NETWORK)

    assert isinstance(verdict, SeparationVerdict)
    assert verdict.advice is Advice.MERGE
    assert (verdict.split.prefill_engines, verdict.split.decode_engines) == (4, 4)
    assert any("1 prefill and 7 decode engines would take" in why for why in verdict.reasons)


def test_pools_that_were_right_to_separate_stay_so() -> None:
    mix = RequestMix(1.0, 6000.0, 150.0, prompt_dispersion=0.0, output_dispersion=0.0)
    targets = Targets(ttft_seconds=3.0, itl_seconds=0.012)
    best = verdict_of(mix, targets).split

    verdict = merging(ALIKE, mix, targets, (best.prefill_engines, best.decode_engines), NETWORK)

    assert isinstance(verdict, SeparationVerdict)
    assert verdict.advice is Advice.STAY_SEPARATE
    assert verdict.gain.ratio == pytest.approx(1 / verdict_of(mix, targets).gain.ratio)


def test_several_kinds_in_one_of_todays_pools_are_refused() -> None:
    with pytest.raises(ValueError, match="one kind of engine each"):
        merging(Engines((COSTS,), (COSTS, COSTS), (COSTS,)), CHAT, LOOSE, (1, 1), NETWORK)


def test_a_price_table_is_enough() -> None:
    costs = priced_costs(H100, LLAMA_8B, 1)
    mix = RequestMix(1.0, 8000.0, 100.0, prompt_dispersion=0.0, output_dispersion=0.0)

    verdict = verdict_of(mix, Targets(2.0, 0.02), engines=Engines((costs,), (costs,), (costs,)))

    assert verdict.advice is Advice.SEPARATE
