from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_cluster.simulator.engine.hardware import (
    GPT_OSS_120B,
    H100,
    H200,
    L40S,
    LLAMA_8B,
    LLAMA_70B,
    QWEN3_32B,
    RTX_PRO_6000,
)
from disagg_cluster.simulator.engine.links import LinkError
from disagg_cluster.simulator.engine.roofline import BatchWork, Roofline, padded

PREFILL = BatchWork(context_tokens=2048, context_pairs=2048 * 2049 // 2, context_kv_tokens=2048)
DECODE = BatchWork(writers=16, writers_kv_tokens=16 * 1500)


def test_prefill_is_bound_by_arithmetic_and_decode_by_memory() -> None:
    costs = Roofline(H100, LLAMA_8B)

    prefill, decode = costs.price(PREFILL), costs.price(DECODE)

    assert 0.78 > prefill.compute_ratio > 0.7 > 0.2 > prefill.memory_ratio
    assert 0.75 > decode.memory_ratio > 0.65 > 0.1 > decode.compute_ratio


def test_the_slower_bound_sets_the_time_far_from_the_ridge_point() -> None:
    """Bare bounds: no launch, one GPU, so only operations or bytes."""
    costs = Roofline(H100, LLAMA_8B, layer_seconds=0.0)
    pairs = PREFILL.context_pairs
    operations = 2 * 8.03e9 * 2048 + 4 * 32 * 4096 * pairs
    read_bytes = 2 * 8.03e9 + 131_072 * (16 * 1500 + 16)

    computing, reading = operations / (989.4e12 * 0.8), read_bytes / (3.35e12 * 0.8)
    assert computing < costs.price(PREFILL).seconds < 1.05 * computing
    assert reading < costs.price(DECODE).seconds < 1.05 * reading


def test_throughput_changes_smoothly_around_the_ridge_point() -> None:
    """By the table: 62 % of the best rate at 256 tokens, 90 % at 512, the knee at 656."""
    costs = Roofline(H100, LLAMA_8B)

    def rate(tokens: int) -> float:
        return tokens / costs.price(BatchWork(tokens, tokens * tokens // 2, tokens)).seconds

    best = max(rate(tokens) for tokens in range(64, 4096, 64))
    assert 0.60 < rate(256) / best < 0.73
    assert 0.82 < rate(512) / best < 0.92
    assert 512 <= next(n for n in range(64, 4096, 64) if rate(n) >= 0.9 * best) <= 768


def test_more_memory_bandwidth_helps_decode_and_hardly_prefill() -> None:
    h100, h200 = Roofline(H100, LLAMA_8B), Roofline(H200, LLAMA_8B)

    assert h200.price(PREFILL).seconds > 0.98 * h100.price(PREFILL).seconds
    assert h200.price(DECODE).seconds < 0.75 * h100.price(DECODE).seconds


def test_a_throttled_gpu_computes_more_slowly_and_reads_at_the_same_speed() -> None:
    costs = Roofline(H100, LLAMA_8B)
    hot = replace(costs, clock_ratio=0.5)

    assert hot.price(PREFILL).seconds > 1.8 * costs.price(PREFILL).seconds
    assert hot.price(DECODE).seconds < 1.05 * costs.price(DECODE).seconds


def test_a_mixed_step_costs_more_under_flash_attention_2() -> None:
    """Requests that decode beside a prompt: a maximum of two lines costs no more than its parts."""
    both = BatchWork(1024, 1024 * 1025 // 2, 1024, writers=128, writers_kv_tokens=128 * 1500)

    extra = {
        gpu.flash_attention: Roofline(gpu, QWEN3_32B, layer_seconds=0.0).mixed_seconds(both)
        for gpu in (H100, RTX_PRO_6000)
    }
    reading = 128 * 1500 * QWEN3_32B.kv_bytes_per_token / (1.792e12 * 0.8)
    assert extra[3] == 0.0
    assert extra[2] == pytest.approx((0.35 * 8 - 1) * reading)
    alone = both._replace(context_tokens=0, context_pairs=0, context_kv_tokens=0)
    assert Roofline(RTX_PRO_6000, QWEN3_32B).mixed_seconds(alone) == 0.0


def test_four_gpus_are_faster_than_one_but_not_four_times() -> None:
    """Communication costs time, and more over PCIe than over NVLink."""
    one, four = Roofline(H100, LLAMA_8B), Roofline(H100, LLAMA_8B, 4)
    speed_up = one.price(DECODE).seconds / four.price(DECODE).seconds
    pcie = Roofline(L40S, LLAMA_8B).price(PREFILL).seconds / (
        Roofline(L40S, LLAMA_8B, 4).price(PREFILL).seconds
    )

    assert 1.5 < speed_up < 4
    assert pcie < one.price(PREFILL).seconds / four.price(PREFILL).seconds


def test_a_huge_group_is_priced_by_its_communication() -> None:
    """More GPUs than any link was measured with: the ring grows, and nothing gets faster."""
    huge = Roofline(L40S, LLAMA_8B, 4096).price(DECODE).seconds

    assert huge > Roofline(L40S, LLAMA_8B, 1024).price(DECODE).seconds
    assert huge > 64 * Roofline(L40S, LLAMA_8B, 8).price(DECODE).seconds / 4
    for none in (0, -8):
        with pytest.raises(LinkError, match=f"no group has {none} GPUs"):
            Roofline(H100, LLAMA_8B, none)


def test_a_batch_runs_at_the_next_kernel_size() -> None:
    assert [padded(n) for n in (1, 2, 3, 5, 8, 9, 257, 513)] == [1, 2, 4, 8, 8, 16, 272, 576]


def test_padding_makes_nine_requests_cost_as_much_as_sixteen() -> None:
    costs = Roofline(H100, LLAMA_8B)
    nine = costs.price(BatchWork(writers=9, writers_kv_tokens=9000))
    sixteen = costs.price(BatchWork(writers=16, writers_kv_tokens=9000))

    assert nine == sixteen


def test_a_small_batch_reads_few_of_the_experts() -> None:
    """4 of 128 for one token, nearly all for a thousand."""
    dense = GPT_OSS_120B.dense_weight_bytes

    one = (GPT_OSS_120B.weight_bytes_read(1) - dense) / GPT_OSS_120B.expert_weight_bytes
    thousand = (GPT_OSS_120B.weight_bytes_read(1000) - dense) / GPT_OSS_120B.expert_weight_bytes

    assert one == pytest.approx(4 / 128)
    assert thousand == pytest.approx(1.0)
    assert LLAMA_8B.weight_bytes_read(1) == LLAMA_8B.weight_bytes


def test_the_cache_gets_the_memory_left_by_the_weights() -> None:
    assert 300_000 < Roofline(H100, LLAMA_8B).kv_tokens() < 450_000
    assert Roofline(H100, LLAMA_70B).kv_tokens() == 0
    assert 300_000 < Roofline(H100, LLAMA_70B, 4).kv_tokens() < 500_000
