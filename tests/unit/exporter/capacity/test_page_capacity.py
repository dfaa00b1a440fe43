from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_exporter.capacity import CapacityModel
from disagg_exporter.capacity.engine import PageCapacity
from disagg_exporter.model import (
    SECOND_NS,
    CapacitySource,
    EnginePage,
    EngineState,
    EngineStatus,
    LimitConfidence,
    Role,
)

TARGET_SECONDS = 0.050


class PagedEngine:
    """An engine whose page is read each second; decode steps of 10 ms + 0.4 ms per request."""

    def __init__(self) -> None:
        self.paged = PageCapacity(TARGET_SECONDS)
        self.page = EnginePage(
            "vllm",
            0,
            running=0.0,
            waiting=0.0,
            kv_usage_ratio=0.0,
            computed_tokens_total=0.0,
            generation_tokens_total=0.0,
        )
        self.paged.ingest(self.page, 0)

    def second(
        self, running: float = 0, prefilled: float = 0, waiting: float = 0, kv: float = 0
    ) -> None:
        page = self.page
        written = running / (0.010 + 0.0004 * running) if running else 0.0
        self.page = replace(
            page,
            t_ns=page.t_ns + SECOND_NS,
            running=float(running),
            waiting=float(waiting),
            kv_usage_ratio=float(kv),
            computed_tokens_total=(page.computed_tokens_total or 0) + prefilled,
            generation_tokens_total=(page.generation_tokens_total or 0) + written,
        )
        self.paged.ingest(self.page, self.page.t_ns)

    def learn(self) -> None:
        for running in (10, 20, 50, 80, 120, 200):
            for _ in range(6):
                self.second(running)


def test_the_batch_at_the_target_is_learned_from_tokens_per_running_request() -> None:
    engine = PagedEngine()

    engine.learn()

    assert engine.paged.decode is not None
    assert engine.paged.decode.requests == pytest.approx(100, rel=0.01)
    assert engine.paged.decode.confidence is LimitConfidence.BOTH


def test_seconds_with_prefill_are_not_learned_as_decode_steps() -> None:
    engine = PagedEngine()

    for _ in range(60):
        engine.second(running=20, prefilled=100)

    assert engine.paged.decode is None


def test_a_prefill_rate_is_learned_only_while_requests_wait_continuously() -> None:
    """Three times ten seconds; a rate without a queue does not show the maximum."""
    engine = PagedEngine()
    for _ in range(100):
        engine.second(prefilled=12_000)
    unsaturated = engine.paged.prefill
    for second in range(60):
        engine.second(prefilled=20_000, waiting=second % 10)
    broken = engine.paged.prefill
    for _ in range(31):
        engine.second(prefilled=20_000, waiting=5)

    assert unsaturated is None
    assert broken is None
    assert engine.paged.prefill is not None
    assert engine.paged.prefill.tokens_per_second == pytest.approx(18_000)
    assert engine.paged.prefill.knee_tokens is None


def test_the_load_is_that_of_the_last_minute() -> None:
    engine = PagedEngine()

    for _ in range(70):
        engine.second(running=20, prefilled=600, kv=0.25)

    load = engine.paged.load
    assert load is not None
    assert load.prefill_tokens_per_second == pytest.approx(600)
    assert load.batch == pytest.approx(20, rel=0.02)
    assert load.kv_usage_ratio == pytest.approx(0.25)
    assert load.blocked_ratio == 0


def test_a_reset_counter_begins_a_new_minute() -> None:
    engine = PagedEngine()
    for _ in range(70):
        engine.second(running=20)

    engine.page = replace(engine.page, generation_tokens_total=0.0)
    for _ in range(3):
        engine.second(running=20)

    assert engine.paged.load is None


def test_another_rank_begins_a_new_minute() -> None:
    """What it had counted before it was shown is no load."""
    engine = PagedEngine()
    for _ in range(70):
        engine.second(running=20, prefilled=600)

    engine.page = replace(engine.page, ranks=2, computed_tokens_total=9e6)
    engine.paged.ingest(replace(engine.page, t_ns=engine.page.t_ns + SECOND_NS), 71 * SECOND_NS)

    assert engine.paged.load is None


def test_without_a_page_there_is_no_load() -> None:
    engine = PagedEngine()
    for _ in range(70):
        engine.second(running=20)

    engine.paged.ingest(engine.page, engine.page.t_ns + 31 * SECOND_NS)
    stale = engine.paged.load
    engine.paged.ingest(None, engine.page.t_ns)

    assert stale is None
    assert engine.paged.load is None


def test_capacity_without_steps_comes_from_the_page_unless_the_engine_sleeps() -> None:
    capacity_model, engine = CapacityModel(TARGET_SECONDS), PagedEngine()
    status = EngineStatus(
        *("engine-0", Role.DECODE, "vllm", "", "llama", ("GPU-0",), EngineState.READY, True),
        *("process", "certain"),
    )
    plan = [b for b in (10, 20, 50, 80, 120, 200) for _ in range(6)] + [18] * 70
    for running in plan:
        engine.second(running)
        status = replace(status, page=engine.page)
        capacity_model.advance([status], engine.page.t_ns)

    (awake,) = capacity_model.capacities([status])
    capacity_model.advance(
        [replace(status, page=replace(engine.page, asleep=True))], engine.page.t_ns
    )
    (asleep,) = capacity_model.capacities([status])

    assert awake.source is CapacitySource.PAGE
    assert awake.used_ratio == pytest.approx(0.18, rel=0.02)
    assert asleep.used_ratio is None
