from __future__ import annotations

import pytest

from disagg_exporter.capacity.curves.utilization import (
    LEAST_SECONDS,
    Load,
    LoadTally,
    load_of,
    utilization,
)
from disagg_exporter.model import DecodeLimit, LimitConfidence, PrefillLimit, Role

PREFILL = PrefillLimit(20_000.0, LimitConfidence.BOTH, 400.0)
DECODE = DecodeLimit(100.0, LimitConfidence.BOTH)


@pytest.mark.parametrize(
    ("role", "load", "used"),
    [
        (Role.PREFILL, Load(5_000.0, 0, 0.9), 0.25),
        (Role.PREFILL, Load(22_000.0, 0, 0.1), 1.1),
        (Role.DECODE, Load(0, 18.0, 0.07), 0.18),
        (Role.DECODE, Load(0, 18.0, 0.65), 0.65),
        (Role.DECODE, Load(0, 18.0, 0.65, blocked_ratio=0.9), 0.9),
        (Role.DECODE, Load(5_000.0, 130.0, 0.5), 1.3),
        (Role.DECODE, Load(0, 18.0, None), None),
        (Role.DECODE, Load(0, 130.0, None), 1.3),
        (Role.DECODE, Load(0, 18.0, None, blocked_ratio=1.0), 1.0),
        (Role.PREFILL, Load(5_000.0, 0, None), 0.25),
        (Role.MIXED, Load(5_000.0, 18.0, None), None),
        (Role.MIXED, Load(5_000.0, 18.0, 0.07), 0.43),
        (Role.MIXED, Load(5_000.0, 18.0, 0.65), 0.65),
        (Role.ENCODE, Load(5_000.0, 18.0, 0.07), None),
        (Role.UNKNOWN, Load(5_000.0, 18.0, 0.07), None),
    ],
)
def test_the_used_ratio_depends_on_the_role(role: Role, load: Load, used: float | None) -> None:
    """Golden vectors of A9 with 20,000 tokens/s at the knee and 100 requests at the target."""
    assert utilization(role, load, PREFILL, DECODE) == (
        None if used is None else pytest.approx(used)
    )


@pytest.mark.parametrize(
    ("role", "prefill", "decode"),
    [
        (Role.PREFILL, None, DECODE),
        (Role.DECODE, PREFILL, None),
        (Role.DECODE, PREFILL, DecodeLimit(None, LimitConfidence.UNREACHABLE)),
        (Role.MIXED, PREFILL, None),
        (Role.MIXED, None, DECODE),
    ],
)
def test_a_role_without_its_limit_has_no_used_ratio(
    role: Role, prefill: PrefillLimit | None, decode: DecodeLimit | None
) -> None:
    """A full cache alone would show how full a decode engine is, an empty one never."""
    assert utilization(role, Load(0, 0, 1.0), prefill, decode) is None


@pytest.mark.parametrize(("batch", "used"), [(64.0, 1.28), (50.0, 1.0), (49.0, None)])
def test_an_engine_that_only_ever_ran_too_large_batches_is_full(
    batch: float, used: float | None
) -> None:
    """The batch at the target is smaller than 50, by an unknown amount."""
    limit = DecodeLimit(None, LimitConfidence.ONE, below=50.0)

    assert utilization(Role.DECODE, Load(0, batch, 0.5), PREFILL, limit) == used
    assert utilization(Role.MIXED, Load(0, batch, 0.5), PREFILL, limit) == used


def test_a_load_is_the_mean_of_the_ranks_over_time() -> None:
    """Time without a step counts: 20 requests for a quarter of it are 5."""
    minute, quarter = 60e9, 15e9
    busy = LoadTally(minute, prefill_tokens=6e5, batch_ns=20 * quarter, kv_ns=0.5 * minute)
    idle = LoadTally(minute, blocked_ns=30e9)

    assert load_of([busy, idle]) == Load(5_000.0, 2.5, 0.25, 0.25, ranks=2)


def test_a_rank_with_only_a_few_seconds_is_left_out() -> None:
    short = LoadTally(LEAST_SECONDS * 1e9 - 1, batch_ns=1e12)
    enough = LoadTally(LEAST_SECONDS * 1e9, batch_ns=LEAST_SECONDS * 1e9)

    assert load_of([short]) is None
    assert load_of([short, enough]) == Load(0.0, 1.0, 0.0, 0.0)
