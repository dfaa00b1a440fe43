"""The text of what was learned: exact, bounded, and never accepted with impossible values."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from disagg_cluster.continuity.learned_text import (
    ENGINE_BYTES,
    FILE_BYTES,
    MOST_ENGINES,
    STALE_SECONDS,
    EngineLearned,
    LearnedEntry,
    LearnedError,
    LearnedIdentity,
    decode,
    decode_entry,
    encode,
    encode_entry,
)
from disagg_exporter.attribution.cost_model.cost import StepCost
from disagg_exporter.attribution.cost_model.samples import StepWork
from disagg_exporter.capacity.curves.curve import LearnedClass, LearnedLimits
from support.learned import SHARES, costs_of

NOW = 1_790_000_000.0
IDENTITY = LearnedIdentity(
    engine="mixed-0",
    kind="vllm",
    role="mixed",
    model_name="m",
    gpus=("GPU-1",),
    gpu_names=("NVIDIA H200",),
    build="b" * 64,
)


def entry(learned: EngineLearned, used: float = NOW, **changes: Any) -> LearnedEntry:
    identity = IDENTITY.model_copy(update=changes)
    return LearnedEntry(identity=identity, timestamp_seconds=used, learned=learned)


def sampled(classes: int, samples: int) -> LearnedLimits:
    rng = random.Random(1)
    curve = tuple(
        LearnedClass(
            n, n, tuple((rng.uniform(1, 9), rng.random() + 0.1, True) for _ in "x" * samples)
        )
        for n in range(classes)
    )
    return LearnedLimits(curve, curve, 0.001, curve, (1.5, 2.5))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.just(0.0) | st.floats(1.0, 1e5),
            st.floats(0.0, 1e9),
            st.integers(1, 500),
            st.floats(1e-5, 10.0),
        ),
        max_size=80,
    )
)
def test_learned_data_is_decoded_as_it_was_encoded(
    steps: list[tuple[float, float, int, float]],
) -> None:
    cost = StepCost()
    for prefill, attended, decode_requests, seconds in steps:
        cost.learn(StepWork(prefill, attended, decode_requests, 3.0 * decode_requests), seconds)
    learned = EngineLearned(((0, cost.save()),), sampled(3, 5), SHARES)

    (read,) = decode(encode([encode_entry(entry(learned))]), NOW).items()

    assert read[0] == IDENTITY
    assert decode_entry(read[1]).learned == learned


def test_dropping_samples_keeps_the_division_of_steps() -> None:
    known = EngineLearned(
        tuple((rank, costs_of(4000, spread=True)) for rank in range(4)), sampled(97, 64), SHARES
    )

    stored = encode_entry(entry(known))

    assert len(stored.text) <= ENGINE_BYTES
    kept = decode_entry(stored).learned
    assert [cost.lines for _, cost in kept.costs] == [cost.lines for _, cost in known.costs]
    assert 0 < len(kept.costs[0][1].cells) < len(known.costs[0][1].cells)
    assert [c.number for c in kept.limits.decode] == list(range(97))


def test_an_entry_too_long_even_without_samples_is_not_written() -> None:
    many = EngineLearned(tuple((rank, costs_of(40)) for rank in range(1024)))

    with pytest.raises(LearnedError, match="bytes"):
        encode_entry(entry(many))


def test_a_file_holds_the_engines_that_were_used_last() -> None:
    small = EngineLearned(((0, costs_of(40)),))
    stored = [encode_entry(entry(small, NOW - n, engine=f"e{n}")) for n in range(MOST_ENGINES + 5)]

    read = decode(encode(stored), NOW)

    assert {identity.engine for identity in read} == {f"e{n}" for n in range(MOST_ENGINES)}


def test_entries_unused_for_a_day_are_dropped() -> None:
    small = EngineLearned(((0, costs_of(40)),))
    stored = [
        encode_entry(entry(small, NOW - STALE_SECONDS - 1, engine="old")),
        encode_entry(entry(small, NOW - STALE_SECONDS + 1, engine="new")),
        encode_entry(entry(small, NOW + 9999, engine="of a clock that was set back")),
    ]

    assert {identity.engine for identity in decode(encode(stored), NOW)} == {
        "new",
        "of a clock that was set back",
    }


GOOD = encode([encode_entry(entry(EngineLearned(((0, costs_of(60)),), sampled(2, 3), SHARES)))])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "torn"),
        (GOOD[: len(GOOD) // 2], "torn"),
        (b"null", "torn"),
        (b"[" * 100_000, "torn"),
        (b"\xff\xfe", "torn"),
        (GOOD.replace(b'"version":3', b'"version":2'), "another"),
        (GOOD.replace(b'"engines"', b'"motors"'), "engines"),
        (GOOD.replace(b'"steps":[', b'"steps":["1",'), "steps"),
        (GOOD.replace(b'"pace":[1.0', b'"pace":[NaN'), "torn|pace"),
        (GOOD.replace(b'"pace":[1.0', b'"pace":[1e999'), "pace"),
        (GOOD.replace(b'"pace":[1.0', b'"pace":[-1.0'), "pace is -1.0"),
        (b" " * (FILE_BYTES + 1), "bytes"),
    ],
)
def test_foreign_files_are_refused_with_the_reason(text: bytes, why: str) -> None:
    with pytest.raises(LearnedError, match=why):
        decode(text, NOW)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.floats(), max_size=4),
    st.sampled_from([0, -1, 1e-320, 1e308, 2**63, 10**400]),
)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = [here] if here else []
    for key, each in inside:
        deeper = isinstance(each, dict | list) and each
        found += paths(each, (*here, key)) if deeper else [(*here, key)]
    return found


PATHS = paths(json.loads(GOOD))


@example(("engines", 0, "learned", "costs", 0, 1, "cells", 5, 4), 1e-320)
@given(st.sampled_from(PATHS), VALUES)
def test_any_file_is_refused_or_usable(path: tuple[Any, ...], value: Any) -> None:
    whole = json.loads(GOOD)
    place = whole
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    try:
        read = decode(json.dumps(whole).encode(), NOW)
    except LearnedError:
        return
    for stored in read.values():
        learned = decode_entry(stored).learned
        for _, saved in learned.costs:
            cost = StepCost.restored(saved)
            for n in range(64):
                cost.learn(StepWork(n * 10.0, n * n * 50.0, n % 7, n * 3.0), 0.01)
            share = cost.prefill_share(StepWork(10.0, 55.0, 2.0, 6.0))
            assert share is None or 0 <= share <= 1


def test_a_duplicate_rank_is_refused() -> None:
    cost = costs_of(40)

    with pytest.raises(ValueError, match="twice"):
        EngineLearned(((0, cost), (0, cost)))
