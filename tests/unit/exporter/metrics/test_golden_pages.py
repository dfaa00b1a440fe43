"""At least one page of every known engine version, and what must be read from it."""

import re
from pathlib import Path
from typing import Any

import pytest

from disagg_exporter.engine_pages.adapters import KNOWN_VERSIONS, is_known_version
from disagg_exporter.engine_pages.histograms import (
    BETWEEN_TOKENS_BOUNDS_SECONDS,
    DURATION_BOUNDS_SECONDS,
    DURATION_READ_BOUNDS_SECONDS,
    FIRST_TOKEN_BOUNDS_SECONDS,
    FIRST_TOKEN_READ_BOUNDS_SECONDS,
    PART_BOUNDS_SECONDS,
)
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.model import EnginePage, Histogram, Total

DATA = Path(__file__).parents[3] / "data"

VLLM_DECODE = {
    "kind": "vllm",
    "steps_total": 661,
    "ranks": 1,
    "model_name": "tiny",
    "external_tokens_total": 2662,
    "kv_queues": {"transfer": 0},
    "computed_tokens_total": 0,
    "kv_cache_tokens": 16384,
    "asleep": False,
    "prefill_seconds_total": None,
    Total.FINISHED_REQUESTS: 121,
    Total.QUEUE_REQUESTS: 121,
    Total.FIRST_TOKEN_REQUESTS: 121,
    Total.PREEMPTIONS: 0,
    Total.TRANSFERS: 121,
    Total.ARRIVED_REQUESTS: 121,
    Total.ENDED_LENGTH: 121,
    Total.ENDED_OTHER: 0,
    Total.REJECTED_FOR_REQUESTS: 0,
    Total.COMPUTED_PROMPT_TOKENS: 0,
    Total.CACHED_PROMPT_TOKENS: 5952,
    Total.TRANSFERRED_PROMPT_TOKENS: 2662,
    "duration": (121, 450.36),
    "prompt_tokens": (121, 8614),
    "output_tokens": (121, 1820),
}

PAGES: dict[str, dict[Any, object]] = {
    "vllm-0.32.0/aggregated.prom": {
        "kind": "vllm",
        "running": 0,
        "deferred": 0,
        "computed_tokens_total": 1298,
        Total.FINISHED_REQUESTS: 20,
        # Without a KV connector there are no transfers: not 0.
        Total.TRANSFERS: None,
        "kv_queues": {},
        "time_to_first_token": 20,
        "inter_token_latency": 266,
    },
    "vllm-0.32.0/nixl_prefill.prom": {
        "kind": "vllm",
        "computed_tokens_total": 2598,
        "generation_tokens_total": 121,
        Total.FINISHED_REQUESTS: 121,
        # Pulled KV is counted by the engine that pulls, unfetched KV by this one.
        Total.TRANSFERS: 0,
        Total.EXPIRED_TRANSFERS: 5,
        Total.COMPUTED_PROMPT_TOKENS: 2598,
        Total.CACHED_PROMPT_TOKENS: 6016,
        "inter_token_latency": 0,
        # Its one token is the end.
        "time_to_first_token": 121,
        "duration": (121, 93.4),
    },
    "vllm-0.32.0/nixl_decode.prom": VLLM_DECODE
    | {
        Total.TRANSFER_SECONDS: 119.89973599999998,
        Total.TRANSFER_BYTES: 4161536,
        Total.FAILED_TRANSFERS: 0,
        Total.EXPIRED_TRANSFERS: 0,
        "time_to_first_token": 121,
        "inter_token_latency": 1699,
    },
    "vllm-0.33.0/mooncake_decode.prom": VLLM_DECODE
    | {
        Total.TRANSFER_SECONDS: 15.125,
        Total.TRANSFER_BYTES: 121 * 2**20,
        Total.FAILED_TRANSFERS: 1,
        Total.FAILED_RECEIVES: 2,
        Total.EXPIRED_TRANSFERS: 3,
        Total.FAILED_NOTIFICATIONS: None,
    },
    "sglang-0.5.23/prefill.prom": {
        "kind": "sglang",
        "running": 2,
        "waiting": 3,
        "deferred": 5,
        "kv_queues": {"bootstrap": 4, "inflight": 1, "prealloc": 0, "transfer": 0},
        "kv_usage_ratio": 0.125,
        "computed_tokens_total": 40960,
        "generation_tokens_total": 0,
        "prefill_seconds_total": 12.5,
        "decode_seconds_total": 0,
        "kv_cache_tokens": 98304,
        "asleep": None,
        Total.FINISHED_REQUESTS: 8,
        # Running, waiting and deferred ones, too.
        Total.ARRIVED_REQUESTS: 8 + 2 + 3 + 5,
        Total.COMPUTED_PROMPT_TOKENS: 40960,
        Total.CACHED_PROMPT_TOKENS: 1024,
        Total.TRANSFERRED_PROMPT_TOKENS: None,
        Total.ENDED_STOP: None,
        Total.REJECTED_FOR_REQUESTS: None,
        Total.QUEUE_SECONDS: 1,
        Total.FIRST_TOKEN_SECONDS: 2,
        Total.KV_STAGE_SECONDS: 0.5,
        Total.KV_STAGE_REQUESTS: 8,
        Total.TRANSFERS: 8,
        Total.TRANSFER_SECONDS: 0.5,
        Total.TRANSFER_BYTES: 4 * 2**20,
        Total.FAILED_TRANSFERS: 2,
        Total.FAILED_BOOTSTRAPS: 1,
    },
    "sglang-0.5.23/decode.prom": {
        "kind": "sglang",
        "running": 18,
        "waiting": 6,
        "deferred": 2,
        "kv_queues": {"bootstrap": 0, "inflight": 0, "prealloc": 6, "transfer": 2},
        "computed_tokens_total": 0,
        "generation_tokens_total": 9000,
        "prefill_seconds_total": 0,
        "decode_seconds_total": 81.75,
        Total.PREEMPTIONS: 3,
        Total.FIRST_TOKEN_SECONDS: None,
        Total.TRANSFERS: None,
        "time_to_first_token": 8,
        "inter_token_latency": 20,
    },
    # Two data-parallel ranks of two pipeline stages of two tensor-parallel ranks, with priorities.
    "sglang-0.5.23/ranks.prom": {
        "kind": "sglang",
        "running": 10,
        "waiting": 2,
        "kv_usage_ratio": 0.375,
        "computed_tokens_total": 81920,
        "generation_tokens_total": 18000,
        "prefill_seconds_total": 8,
        "decode_seconds_total": 20,
        "kv_cache_tokens": 2 * 98304,
        "ranks": 2,
        Total.QUEUE_REQUESTS: 16,
    },
    "trtllm-050f80d/generation.prom": {
        "kind": "trtllm",
        "running": 7,
        "waiting": 2,
        "kv_usage_ratio": 0.25,
        "computed_tokens_total": None,
        "generation_tokens_total": 8000,
        "kv_cache_tokens": 65536,
        Total.FINISHED_REQUESTS: 8,
        Total.QUEUE_SECONDS: 0.5,
        Total.FIRST_TOKEN_SECONDS: 2,
        "time_to_first_token": 8,
        Total.ARRIVED_REQUESTS: 8 + 7 + 2,
        Total.ENDED_LENGTH: 8,
        # Absent until the first.
        Total.ENDED_ABORT: 0,
        Total.COMPUTED_PROMPT_TOKENS: None,
        "duration": (8, 12),
        "prompt_tokens": None,
        # Its time per output token is a mean over a request, not the time between two tokens.
        "inter_token_latency": None,
    },
    "trtllm-050f80d/dynamo_worker.prom": {
        "kind": "trtllm",
        Total.TRANSFERS: 8,
        Total.TRANSFER_SECONDS: 0.25,
        Total.TRANSFER_BYTES: 8 * 2**21,
    },
    "trtllm-050f80d/older.prom": {
        "kind": "trtllm",
        "running": None,
        "kv_usage_ratio": 0.25,
        Total.FINISHED_REQUESTS: 8,
        "time_to_first_token": 8,
    },
    "dynamo-1.6.1/decode.prom": {
        "kind": "vllm",
        "running": 0,
        "waiting": 0,
        "computed_tokens_total": None,
        "generation_tokens_total": None,
        Total.PREEMPTIONS: 0,
        "time_to_first_token": 202,
        "inter_token_latency": 29822,
    },
    "dynamo-1.6.1/prefill.prom": {
        "kind": "dynamo",
        "running": None,
        "model_name": None,
        # The one of its two endpoints that serves requests.
        Total.FINISHED_REQUESTS: 202,
        Total.ARRIVED_REQUESTS: None,
    },
}


def told(page: EnginePage, what: str) -> object:
    if isinstance(what, Total):
        return page.serving.totals.get(what)
    if what in ("time_to_first_token", "inter_token_latency"):
        histogram: Histogram | None = getattr(page.serving, what)
        return None if histogram is None else histogram.counts[-1]
    if what in ("duration", "prompt_tokens", "output_tokens"):
        histogram = getattr(page.serving, what)
        return None if histogram is None else (histogram.total, round(histogram.sum, 2))
    return getattr(page, what)


@pytest.mark.parametrize("file", PAGES)
def test_a_golden_page_gives_its_values(file: str) -> None:
    page = parse_page((DATA / file).read_bytes(), 0)

    assert {what: told(page, what) for what in PAGES[file]} == PAGES[file]


@pytest.mark.parametrize(
    "version", [f"{kind}-{v}" for kind, all_of in KNOWN_VERSIONS.items() for v in sorted(all_of)]
)
def test_every_known_version_has_a_golden_page(version: str) -> None:
    assert any(file.startswith(f"{version}/") for file in PAGES)


@pytest.mark.parametrize(
    ("kind", "version", "known"),
    [
        ("vllm", "0.33.0", True),
        ("vllm", "0.32.0+cpu", True),
        ("vllm", "0.33.1", False),
        ("vllm", "0.33.0rc1", False),
        ("sglang", "0.5.23", True),
        ("sglang", "0.32.0", False),
        ("trtllm", "1.3.0", False),
        ("", "", False),
    ],
)
def test_only_versions_whose_page_was_read_are_known(kind: str, version: str, known: bool) -> None:
    assert is_known_version(kind, version) is known


VLLM_PAGE, TRTLLM_PAGE = "vllm-0.32.0/nixl_decode.prom", "trtllm-050f80d/generation.prom"


# The page of TensorRT-LLM has no histogram of the time between tokens.
@pytest.mark.parametrize(
    ("file", "name", "ours"),
    [
        (VLLM_PAGE, "time_to_first_token_seconds", FIRST_TOKEN_BOUNDS_SECONDS),
        (VLLM_PAGE, "time_to_first_token_seconds", FIRST_TOKEN_READ_BOUNDS_SECONDS),
        (VLLM_PAGE, "time_to_first_token_seconds", PART_BOUNDS_SECONDS),
        (VLLM_PAGE, "inter_token_latency_seconds", BETWEEN_TOKENS_BOUNDS_SECONDS),
        (VLLM_PAGE, "e2e_request_latency_seconds", DURATION_READ_BOUNDS_SECONDS),
        (VLLM_PAGE, "e2e_request_latency_seconds", DURATION_BOUNDS_SECONDS),
        (TRTLLM_PAGE, "time_to_first_token_seconds", FIRST_TOKEN_BOUNDS_SECONDS),
    ],
)
def test_our_histogram_bounds_are_a_subset_of_the_engines_bounds(
    file: str, name: str, ours: tuple[float, ...]
) -> None:
    text = (DATA / file).read_text()

    theirs = {float(bound) for bound in re.findall(rf'{name}_bucket{{.*le="([0-9.]+)"', text)}
    assert set(ours) <= theirs
