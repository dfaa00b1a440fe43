from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.config.problems import ConfigError
from disagg_cluster.planner.capacity.engine_costs import UnseenStepError
from disagg_cluster.planner.capacity.learned.profile_costs import (
    NoSuchPhaseError,
    ProfileCosts,
    profile_costs,
)
from disagg_cluster.planner.capacity.learned.tune_profile import (
    ProfileMismatchError,
    TuneProfile,
    merged,
    read_profile,
)
from disagg_cluster.planner.capacity.pool_capacity import PoolCapacity
from disagg_cluster.planner.capacity.prefill_pool import prefill_capacity
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_exporter.model import Role

PREFILL: dict[str, Any] = {
    "times": "page",
    "max_num_batched_tokens": 1024,
    "lengths": [
        {
            "prompt_tokens": 512,
            "steps": [
                {"size": 512, "seconds": 0.02},
                {"size": 1024, "seconds": 0.03},
                {"size": 2048, "seconds": 0.05},
            ],
        },
        {
            "prompt_tokens": 2048,
            "steps": [
                {"size": 512, "seconds": 0.02},
                {"size": 1024, "seconds": 0.032},
                {"size": 2048, "seconds": 0.06},
            ],
        },
    ],
}
DECODE = {
    "target_seconds": 0.05,
    "max_num_seqs": 32,
    "contexts": [
        {
            "context_tokens": 1000,
            "steps": [{"size": 1, "seconds": 0.01}, {"size": 64, "seconds": 0.03}],
        }
    ],
}
WHOLE = {
    "disagg_node_profile": 1,
    "model_name": "llama",
    "kv_cache_tokens": 400000,
    "prefill": PREFILL,
    "decode": DECODE,
}


def costs(**changes: object) -> ProfileCosts:
    return profile_costs(TuneProfile.model_validate({**WHOLE, **changes}), Role.MIXED, "H200", 1)


@pytest.mark.parametrize(
    ("step", "seconds"),
    [
        ((1024, 256, 0, 0), 0.03),
        ((1536, 256, 0, 0), 0.04),
        ((2048, 256, 0, 0), 0.05),
        ((2048, 0, 0, 0), 0.05),
        # Halfway between prompts of 512 and of 2048 tokens, and as far beyond the longest.
        ((2048, 640, 0, 0), 0.055),
        ((2048, 1408, 0, 0), 0.065),
        # A chunk of a long prompt pays for what it attends to as the largest step does.
        ((512, 256, 0, 0), 0.02),
        ((512, 256 + 768, 0, 0), 0.02 + 0.01 * 512 / 2048),
        ((0, 0, 64, 64000), 0.03),
        ((1024, 256, 64, 64000), 0.03 + 0.03 - 0.01),
    ],
)
def test_steps_take_the_timed_seconds(
    step: tuple[float, float, float, float], seconds: float
) -> None:
    assert costs().step_seconds(*step) == pytest.approx(seconds)


@pytest.mark.parametrize("step", [(5000, 256, 0, 0), (1024, 9000, 0, 0), (0, 0, 64, 64 * 4001)])
def test_steps_far_from_the_timed_ones_have_no_price(
    step: tuple[float, float, float, float],
) -> None:
    with pytest.raises(UnseenStepError):
        costs().step_seconds(*step)


@pytest.mark.parametrize(
    ("prompt_tokens", "cached_tokens"), [(500, 0), (1000, 0), (400, 200), (400, 4000)]
)
def test_prompts_that_differ_or_have_a_cached_beginning_have_a_price(
    prompt_tokens: float, cached_tokens: float
) -> None:
    """One prompt in some hundred is ten times as long as the mean one, and is computed in chunks.

    Each chunk attends to more tokens than a whole prompt of its size does.
    """
    mix = RequestMix(1.0, prompt_tokens, 200.0, cached_tokens)

    found = prefill_capacity(costs(), mix, Targets(5.0, 0.05), 4)

    assert isinstance(found, PoolCapacity)
    assert found.requests_per_second > 0


def test_what_prompts_of_nearly_one_length_differ_by_is_no_price_of_attention() -> None:
    near = {**PREFILL["lengths"][1], "prompt_tokens": 600}
    prefill = {**PREFILL, "lengths": [PREFILL["lengths"][0], near]}

    assert costs(prefill=prefill).attended_seconds == 0.0


def test_an_engine_has_the_limits_of_the_profile() -> None:
    shape = costs(decode=timed_contexts((1000, 64, 64))).shape

    assert (shape.max_num_batched_tokens, shape.max_num_seqs) == (1024, 64)
    assert shape.kv_tokens == 400_000


def timed_contexts(*contexts: tuple[int, int, int | None]) -> dict[str, Any]:
    """Decode steps up to a batch at contexts of a length, and the most that the engine ran."""
    found: list[dict[str, Any]] = []
    for tokens, batch, crowded in contexts:
        steps = [{"size": 1, "seconds": 0.01}, {"size": batch, "seconds": 0.03}]
        found.append({"context_tokens": tokens, "steps": steps, "crowded_at": crowded})
    return {**DECODE, "contexts": found}


@pytest.mark.parametrize(
    ("contexts", "requests"),
    [
        # The target was missed, requests ended too early, or nobody asked for more.
        ([(1000, 64, None)], 256),
        ([(1000, 512, None)], 512),
        # It ran more at once with shorter contexts: the cache was full.
        ([(1000, 64, None), (20_000, 16, 16)], 256),
        ([(1000, 64, 64), (20_000, 16, 16)], 64),
        ([(20_000, 19, 19)], 256),
    ],
)
def test_the_largest_batch_timed_is_not_taken_for_the_most_that_an_engine_runs(
    contexts: list[tuple[int, int, int | None]], requests: int
) -> None:
    assert costs(decode=timed_contexts(*contexts)).shape.max_num_seqs == requests


def test_a_role_whose_phase_was_not_timed_has_no_costs() -> None:
    only_prefill = TuneProfile.model_validate({**WHOLE, "decode": None})

    assert profile_costs(only_prefill, Role.PREFILL, "H200", 1).decode == {}
    with pytest.raises(NoSuchPhaseError, match="tune decode"):
        profile_costs(only_prefill, Role.DECODE, "H200", 1)


def test_a_merged_profile_keeps_the_phase_that_was_not_timed_again() -> None:
    old = TuneProfile.model_validate({**WHOLE, "decode": None})
    new = TuneProfile.model_validate({**WHOLE, "prefill": None, "kv_cache_tokens": None})

    both = merged(old, new)

    assert (both.prefill, both.decode) == (old.prefill, new.decode)
    assert both.kv_cache_tokens == 400_000


def test_profiles_of_two_models_are_not_merged() -> None:
    old = TuneProfile.model_validate(WHOLE)

    with pytest.raises(ProfileMismatchError, match="qwen"):
        merged(old, old.model_copy(update={"model_name": "qwen"}))


def test_all_problems_of_a_profile_are_reported_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    wrong = {**WHOLE, "disagg_node_profile": 2, "prefill": {"times": "sun", "lengths": []}}
    path.write_text(json.dumps(wrong, indent=1))

    with pytest.raises(ConfigError) as raised:
        read_profile(path)

    message = str(raised.value)
    keys = ("disagg_node_profile", "prefill.times", "prefill.lengths")
    assert all(key in message for key in keys)
    assert f"{path}:2:" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("{", "not valid YAML"),
        ('{"disagg_node_profile": 1, "model_name": "m"}', "neither `prefill` nor `decode`"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        read_profile(path)


def test_a_size_that_appears_twice_is_refused(tmp_path: Path) -> None:
    steps = [{"size": 8, "seconds": 1.0}] * 2
    path = tmp_path / "p.json"
    twice = {"target_seconds": 0.05, "contexts": [{"context_tokens": 9, "steps": steps}]}
    path.write_text(json.dumps({**WHOLE, "decode": twice}))

    with pytest.raises(ConfigError, match="twice"):
        read_profile(path)
