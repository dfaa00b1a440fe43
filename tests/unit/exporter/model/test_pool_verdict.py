"""The words on pools are those that the rules record for dashboards."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.model import Role
from disagg_exporter.model.pool_verdict import pool_verdicts

RULES = Path(__file__).parents[4] / "alerts" / "rules" / "disagg-recording-verdict.yaml"
GONE = {"no prefill engine is left", "no decode engine is left", "no engine is left"}
"""What only dashboards show: a node does not know what the others have lost."""
RATIOS = st.none() | st.sampled_from([0.0, 0.25, 0.5, 0.51, 0.7, 0.71, 0.95, 1.0, 1.02, 1.1])


def words(
    prefill: float | None, decode: float | None, mixed: float | None = None, *, late: bool = False
) -> list[str]:
    used = {Role.PREFILL: prefill, Role.DECODE: decode, Role.MIXED: mixed}
    known = {role: ratio for role, ratio in used.items() if ratio is not None}
    return list(pool_verdicts(known, tokens_late=late))


@pytest.mark.parametrize(
    ("prefill", "decode", "told"),
    [
        (0.51, 0.25, "prefill is short of GPUs"),
        (0.25, 0.51, "decode is short of GPUs"),
        (0.6, 0.3, "the pools are in balance"),  # twice as full is not more than twice
        (0.5, 0.1, "nothing to do, both below 50 %"),
        (0.71, 0.95, "both pools are filling up"),
        (0.7, 0.95, "the pools are in balance"),
        (0.2, None, "what decode can take is not learned yet"),
        (None, 0.2, "what prefill can take is not learned yet"),
    ],
)
def test_two_pools_have_one_verdict(prefill: float | None, decode: float | None, told: str) -> None:
    assert words(prefill, decode) == [told]


@pytest.mark.parametrize(
    ("mixed", "told"),
    [
        (0.7, "mixed engines have room"),
        (0.71, "mixed engines are filling up"),
        (0.95, "mixed engines are full"),
    ],
)
def test_mixed_engines_have_a_separate_verdict(mixed: float, told: str) -> None:
    assert words(0.1, 0.1, mixed) == ["nothing to do, both below 50 %", told]


def test_unknown_pools_have_no_verdict() -> None:
    assert words(None, None) == []


def test_late_tokens_change_the_verdict_of_pools_with_room() -> None:
    assert words(0.1, 0.5, late=True) == ["both below 50 %, yet tokens are late"]
    assert words(0.1, 0.6, late=True) == ["decode is short of GPUs"]


@given(RATIOS, RATIOS, RATIOS, st.booleans())
def test_the_words_match_the_recorded_verdict(
    prefill: float | None, decode: float | None, mixed: float | None, late: bool
) -> None:
    rules = yaml.load(RULES.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"][0]["rules"]
    recorded = {rule["labels"]["verdict"] for rule in rules if "labels" in rule}

    assert set(words(prefill, decode, mixed, late=late)) <= recorded


def test_every_recorded_verdict_occurs_for_some_pools() -> None:
    rules = yaml.load(RULES.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"][0]["rules"]
    recorded = {rule["labels"]["verdict"] for rule in rules if "labels" in rule}
    steps = (None, 0.1, 0.5, 0.6, 0.8, 1.0)

    told = {
        each
        for p, d, m in product(steps, repeat=3)
        for late in (False, True)
        for each in words(p, d, m, late=late)
    }

    assert told | GONE == recorded
    assert not told & GONE
