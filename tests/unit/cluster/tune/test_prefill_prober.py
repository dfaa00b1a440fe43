from __future__ import annotations

import random
from collections.abc import Generator, Sequence

import pytest

from disagg_cluster.tune.completions import (
    Prompt,
    SmallVocabularyError,
    UniquePrompts,
    WrittenToken,
)
from disagg_cluster.tune.prefill_prober import (
    LEAST_SAMPLES,
    PrefillProber,
    StepShape,
    TimeSource,
    step_shape,
)
from disagg_cluster.tune.traffic_guard import LiveEngineError
from support.probed_engines import WAY_SECONDS, FakeEngine, affine

PRICE = affine(0.01, 1e-5)


def prober(engine: FakeEngine, *, live: bool = False) -> PrefillProber:
    return PrefillProber(engine, UniquePrompts(random.Random(3)), live, now=lambda: engine.now)


@pytest.mark.parametrize("first_alone", [True, False])
@pytest.mark.parametrize("shape", [StepShape(1, 640), StepShape(2, 512), StepShape(8, 512)])
def test_a_step_is_timed_by_the_engines_own_clock(shape: StepShape, first_alone: bool) -> None:
    """Even if some of its prompts arrive too late for the first step."""
    engine = FakeEngine(PRICE, first_alone=first_alone)

    probe = prober(engine).probe(shape)

    assert probe is not None
    assert (probe.size, len(probe.seconds)) == (shape.size, LEAST_SAMPLES)
    assert probe.seconds == pytest.approx([PRICE(shape.size)] * LEAST_SAMPLES)


@pytest.mark.parametrize("shape", [StepShape(2, 512), StepShape(8, 512)])
def test_without_a_metrics_page_a_step_is_timed_from_the_previous_token(shape: StepShape) -> None:
    engine = FakeEngine(PRICE, has_page=False)
    made = prober(engine)

    probe = made.probe(shape)

    assert made.source is TimeSource.CLIENT
    assert probe is not None
    assert probe.seconds == pytest.approx([PRICE(shape.size)] * LEAST_SAMPLES)


def test_without_a_metrics_page_a_single_prompt_includes_the_round_trip() -> None:
    engine = FakeEngine(PRICE, has_page=False)

    probe = prober(engine).probe(StepShape(1, 512))

    assert probe is not None
    assert probe.seconds[0] == pytest.approx(PRICE(512) + 2 * WAY_SECONDS)


@pytest.mark.parametrize("has_page", [True, False])
def test_prompts_that_do_not_fit_into_one_step_are_no_sample(has_page: bool) -> None:
    engine = FakeEngine(PRICE, step_tokens=1024, has_page=has_page)
    made = prober(engine)

    assert made.probe(StepShape(4, 512)) is None
    assert not made.is_whole(StepShape(2, 700))
    assert made.is_whole(StepShape(2, 512))


def test_prompts_that_ranks_compute_at_the_same_time_are_not_taken_for_one_step() -> None:
    """Their tokens come together, as if a step of both took as long as one of them."""
    made = prober(FakeEngine(PRICE, ranks=2))

    assert made.probe(StepShape(1, 512)) is not None
    assert made.probe(StepShape(2, 512)) is None
    assert not made.is_whole(StepShape(2, 512))


def test_no_prompt_is_sent_twice() -> None:
    engine = FakeEngine(PRICE)

    prober(engine).probe(StepShape(4, 64))

    assert len({tuple(prompt) for prompt in engine.sent}) == len(engine.sent)


def test_a_small_vocabulary_gets_small_ids() -> None:
    engine = FakeEngine(PRICE, vocabulary=300)

    assert prober(engine).probe(StepShape(1, 64)) is not None


def test_a_vocabulary_without_our_token_ids_is_an_error() -> None:
    engine = FakeEngine(PRICE, vocabulary=10)

    with pytest.raises(SmallVocabularyError):
        prober(engine).probe(StepShape(1, 64))


def test_foreign_requests_prevent_a_probe_unless_live_is_allowed() -> None:
    engine = FakeEngine(PRICE, running=3)

    with pytest.raises(LiveEngineError, match="3 running"):
        prober(engine).probe(StepShape(1, 64))

    assert engine.sent == []
    assert prober(engine, live=True).probe(StepShape(1, 64)) is not None


@pytest.mark.parametrize("shape", [StepShape(1, 640), StepShape(2, 512), StepShape(8, 512)])
def test_a_step_that_was_scheduled_during_the_one_ahead_does_not_contain_it(
    shape: StepShape,
) -> None:
    probe = prober(FakeEngine(affine(0.01, 1e-4), schedules_ahead=True)).probe(shape)

    assert probe is not None
    assert probe.seconds == pytest.approx([0.01 + 1e-4 * shape.size] * LEAST_SAMPLES)


@pytest.mark.parametrize("launch_part", [0.0, 0.6, 1.0])
def test_an_engine_that_schedules_ahead_is_timed_as_its_users_see_it(launch_part: float) -> None:
    """Whatever its page counts of the step ahead, and without the launch."""
    price = affine(0.01, 1e-4)
    made = prober(
        FakeEngine(
            price,
            schedules_ahead=True,
            launch_seconds=launch_part * price(64),
            resting_price=affine(0.03, 1e-4),
        )
    )
    made.notice_overlap(StepShape(2, 4096))

    for shape in (StepShape(1, 64), StepShape(1, 640), StepShape(8, 512)):
        probe = made.probe(shape)
        assert made.source is TimeSource.TOKENS
        assert probe is not None
        assert probe.seconds == pytest.approx([price(shape.size)] * LEAST_SAMPLES)


def test_an_engine_that_does_not_schedule_ahead_keeps_its_own_clock() -> None:
    made = prober(FakeEngine(PRICE))

    made.notice_overlap(StepShape(2, 4096))

    assert made.probe(StepShape(1, 64)) is not None
    assert made.source is TimeSource.PAGE


class BusyEngine(FakeEngine):
    """Serves a request of somebody else beside each of the first single prompts."""

    others: int = 12

    def complete(
        self, prompts: Sequence[Prompt], max_tokens: int, deadline_seconds: float
    ) -> Generator[WrittenToken]:
        yield from super().complete(prompts, max_tokens, deadline_seconds)
        if len(prompts) == 1 and self.others:
            self.others -= 1
            self._first_tokens += 1
            self._steps += 1


def test_a_prompt_ahead_whose_own_step_is_not_known_is_not_counted_to_the_step_after_it() -> None:
    """At first there was no step of a prompt alone in which no other request took part."""
    probe = prober(BusyEngine(PRICE), live=True).probe(StepShape(2, 512))

    assert probe is not None
    assert probe.seconds == pytest.approx([PRICE(1024)] * LEAST_SAMPLES)


@pytest.mark.parametrize(
    ("size", "prompt", "most", "shape"),
    [
        (64, 512, None, StepShape(1, 64)),
        (600, 512, None, StepShape(1, 600)),
        (1024, 512, None, StepShape(2, 512)),
        (8192, 512, None, StepShape(16, 512)),
        (8192, 8192, 2047, StepShape(5, 1638)),
    ],
)
def test_a_step_is_filled_with_prompts_of_about_the_length(
    size: int, prompt: int, most: int | None, shape: StepShape
) -> None:
    assert step_shape(size, prompt, most) == shape
