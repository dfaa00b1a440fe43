"""An engine's pages to stretches of work."""

from __future__ import annotations

import random
from typing import Any

import pytest

from disagg_exporter.attribution.pages.page_windows import PageWindows
from disagg_exporter.attribution.pages.prefill_shares import Counts
from disagg_exporter.attribution.pages.sources import role_window
from disagg_exporter.model import (
    SECOND_NS,
    EnginePage,
    Histogram,
    Method,
    Role,
    ServingCounts,
    Split,
)


def _page(second: float, computed: float, generated: float, **told: Any) -> EnginePage:
    return EnginePage(
        "vllm",
        round(second * SECOND_NS),
        computed_tokens_total=computed,
        generation_tokens_total=generated,
        **told,
    )


def test_the_first_page_and_a_repeated_page_give_no_window() -> None:
    stretches = PageWindows(lambda start, end: 1.0)
    assert stretches.ingest(_page(1, 10, 0), Role.MIXED, Method.PAGE) is None
    assert stretches.ingest(_page(1, 10, 0), Role.MIXED, Method.PAGE) is None


def test_two_pages_give_tokens_requests_and_a_share() -> None:
    stretches = PageWindows(lambda start, end: 0.5)
    stretches.ingest(_page(1, 100, 10), Role.MIXED, Method.PAGE)
    did = stretches.ingest(_page(2, 130, 20, running=2, waiting=1), Role.MIXED, Method.PAGE)
    assert did is not None
    assert (did.prefill_tokens, did.decode_tokens, did.prefill_share) == (30, 10, 0.75)
    assert (did.running, did.waiting, did.deferred, did.pending) == (2, 1, None, True)
    assert did.busy_ns is None


@pytest.mark.parametrize(("cpu", "busy_seconds"), [(5.5, 0.5), (9.0, 1.0), (4.0, 0.0)])
def test_without_a_gpu_cpu_time_is_busy_time_up_to_the_wall_time(
    cpu: float, busy_seconds: float
) -> None:
    stretches = PageWindows(lambda start, end: 0.0)
    stretches.ingest(_page(1, 0, 0), Role.DECODE, Method.PAGE_CPU, 5.0)
    did = stretches.ingest(_page(2, 0, 9), Role.DECODE, Method.PAGE_CPU, cpu)
    assert did is not None
    assert did.busy_ns == round(busy_seconds * SECOND_NS)
    assert did.prefill_share == 0.0


def test_without_cpu_time_there_is_no_window() -> None:
    stretches = PageWindows(lambda start, end: 1.0)
    stretches.ingest(_page(1, 0, 0), Role.DECODE, Method.PAGE_CPU, None)
    assert stretches.ingest(_page(2, 0, 9), Role.DECODE, Method.PAGE_CPU, 3.0) is None


def test_an_engines_own_timers_need_no_model() -> None:
    stretches = PageWindows(lambda start, end: 1.0)
    timers = {"prefill_seconds_total": 5.0, "decode_seconds_total": 5.0}
    stretches.ingest(_page(1, 0, 0, **timers), Role.MIXED, Method.ENGINE_TIMERS)
    timers = {"prefill_seconds_total": 5.6, "decode_seconds_total": 5.2}
    did = stretches.ingest(_page(2, 9, 9, **timers), Role.MIXED, Method.ENGINE_TIMERS)
    assert did is not None
    assert did.busy_ns == pytest.approx(0.8 * SECOND_NS)
    assert did.prefill_share == pytest.approx(0.75)
    assert (did.split, did.residual_ratio) == (Split.NONE, None)


@pytest.mark.parametrize(("computed", "external", "decoded"), [(90, 0, 20), (0, 90, 30)])
def test_the_first_token_of_a_prompt_computed_here_is_no_decode_work(
    computed: float, external: float, decoded: int
) -> None:
    def page(second: float, requests: float, **told: Any) -> EnginePage:
        first = ServingCounts(time_to_first_token=Histogram((1.0,), (requests, requests), 1.0))
        return _page(second, serving=first, **told)

    stretches = PageWindows(lambda start, end: 1.0)
    nothing = {"computed": 0.0, "generated": 0.0, "external_tokens_total": 0.0}
    stretches.ingest(page(1, 5, **nothing), Role.MIXED, Method.PAGE)
    told = {"computed": computed, "generated": 30.0, "external_tokens_total": external}
    did = stretches.ingest(page(2, 15, **told), Role.MIXED, Method.PAGE)
    assert did is not None
    assert did.decode_tokens == decoded


def test_after_a_pause_the_next_page_is_the_first() -> None:
    stretches = PageWindows(lambda start, end: 1.0)
    stretches.ingest(_page(1, 0, 0), Role.MIXED, Method.PAGE)
    stretches.forget()
    assert stretches.ingest(_page(2, 5, 5), Role.MIXED, Method.PAGE) is None


@pytest.mark.parametrize("ranks", [1, 3])
def test_pages_of_different_numbers_of_ranks_give_no_window(ranks: int) -> None:
    """What the ranks that came or went had counted is not what was done in between."""

    def page(second: float, of: int) -> EnginePage:
        return _page(second, 0, 1e6 * of, ranks=of)

    stretches = PageWindows(lambda start, end: 1.0)
    stretches.ingest(page(1, 2), Role.MIXED, Method.PAGE)

    assert stretches.ingest(page(2, ranks), Role.MIXED, Method.PAGE) is None
    assert stretches.ingest(page(3, ranks), Role.MIXED, Method.PAGE) is not None


def test_steps_of_parallel_ranks_are_averaged_and_their_token_gaps_kept() -> None:
    """Two ranks that take 20 steps each in a second take 20 steps' time of the group."""

    def page(second: float, steps: float, gaps: tuple[float, ...]) -> EnginePage:
        between = Histogram((0.1,), gaps, 1.0)
        serving = ServingCounts(inter_token_latency=between)
        return _page(second, 0, 10 * steps, steps_total=steps, serving=serving, ranks=2)

    learned: list[Counts] = []
    stretches = PageWindows(lambda start, end: 1.0)
    stretches.shares.learn = lambda counts, *_: learned.append(counts)  # type: ignore[method-assign]
    stretches.ingest(page(1, 100, (7.0, 9.0)), Role.MIXED, Method.PAGE)
    stretches.ingest(page(2, 140, (17.0, 29.0)), Role.MIXED, Method.PAGE)

    assert learned == [Counts(0, 400, 20.0, 0.0, (10.0, 10.0))]


@pytest.mark.parametrize(
    ("role", "share"),
    [(Role.PREFILL, 1.0), (Role.DECODE, 0.0), (Role.MIXED, None), (Role.UNKNOWN, None)],
)
def test_a_role_alone_gives_a_share_only_for_single_phase_roles(
    role: Role, share: float | None
) -> None:
    did = role_window(role, 0, SECOND_NS)
    assert (did and did.prefill_share) == share


@pytest.mark.parametrize("counted", [True, False])
def test_steps_are_counted_or_else_inferred_from_running_requests(counted: bool) -> None:
    """Each step writes one token for each request: 60 tokens of 3 requests are 20 steps."""
    dice, busy_seconds = random.Random(3), 0.0
    stretches = PageWindows(lambda start, end: busy_seconds)
    generated = computed = steps = 0.0
    shares = []
    for second in range(300):
        did, prompt = dice.randrange(10, 30), dice.choice([0, 0, 2000])
        busy_seconds = 0.02 * did + 1e-4 * prompt
        steps, generated, computed = steps + did, generated + 3 * did, computed + prompt
        told = {"steps_total": steps} if counted else {}
        page = _page(second, computed, generated, running=3, **told)
        window = stretches.ingest(page, Role.MIXED, Method.PAGE)
        if window is not None and second > 250:
            assert window.split is Split.MODEL
            shares.append((prompt, window.prefill_share, busy_seconds))

    assert max(share for prompt, share, _ in shares if not prompt) < 0.01
    assert [share for prompt, share, _ in shares if prompt] == pytest.approx(
        [0.2 / busy for prompt, _, busy in shares if prompt], abs=0.05
    )
