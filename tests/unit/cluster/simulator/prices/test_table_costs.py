"""Costs of steps by a table: parts summed, extrapolated, throttled."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.simulator import prices
from disagg_cluster.simulator.engine.hardware import (
    H100,
    L40S,
    LLAMA_8B,
    LLAMA_70B,
    QWEN3_30B_A3B,
    QWEN3_32B,
    RTX_PRO_6000,
    Gpu,
    Model,
)
from disagg_cluster.simulator.engine.roofline import BatchWork, Roofline
from disagg_cluster.simulator.prices.expert_parallel import ExpertParallelCosts
from disagg_cluster.simulator.prices.grid import Grid
from disagg_cluster.simulator.prices.shipped import (
    NoPriceTableError,
    best_costs,
    named_costs,
    shipped_table,
    table_costs,
    table_names,
)
from disagg_cluster.simulator.prices.table import PriceTableError
from disagg_cluster.simulator.prices.table_costs import PriceMismatchError, TableCosts

MICRO = 1e-6
COSTS = table_costs(RTX_PRO_6000, LLAMA_8B, 1)


def prompt(tokens: int, before: int = 0) -> BatchWork:
    return BatchWork(tokens, tokens * before + tokens * (tokens + 1) // 2, before + tokens)


def writing(requests: int, read: int) -> BatchWork:
    return BatchWork(writers=requests, writers_kv_tokens=requests * read)


def both(first: BatchWork, second: BatchWork) -> BatchWork:
    return first._replace(writers=second.writers, writers_kv_tokens=second.writers_kv_tokens)


def test_a_step_is_the_sum_of_its_parts() -> None:
    parts = COSTS.table.parts

    micros = parts["tokens"].at(1024) + parts["requests"].at(1) + parts["context"].at(1024, 512)
    assert COSTS.price(prompt(1024, 512)).seconds == pytest.approx(micros * MICRO)
    micros = parts["tokens"].at(64) + parts["requests"].at(64) + parts["decode"].at(64, 1024)
    assert COSTS.price(writing(64, 1024)).seconds == pytest.approx(micros * MICRO)


def test_many_short_prompts_attend_to_less_than_a_long_one() -> None:
    short = BatchWork(2048, 16 * 128 * 129 // 2, 2048)

    assert 0.9 < COSTS.price(short).seconds / COSTS.price(prompt(2048)).seconds < 1


def test_a_mixed_step_costs_the_measured_time() -> None:
    """1,024 prompt tokens beside 128 requests: costlier than both apart, on FlashAttention-2."""
    costs = table_costs(RTX_PRO_6000, QWEN3_32B, 2)
    first, second = prompt(1024), writing(128, 1024)
    mixed = costs.price(both(first, second)).seconds
    attention = costs.table.parts["context"].at(1024, 0) + costs.table.parts["decode"].at(128, 1024)

    extra = costs.table.surcharge
    assert extra is not None
    assert extra.at(1024, 0, 128, 1024) > 0.5 * attention
    assert mixed > costs.price(first).seconds + extra.at(1024, 0, 128, 1024) * MICRO


def test_without_mixed_rows_the_gpus_kernels_determine_the_cost_of_mixing() -> None:
    first, second = prompt(1024), writing(64, 1024)
    for gpu, surcharge in ((H100, False), (L40S, True)):
        costs = table_costs(gpu, LLAMA_8B, 1)
        parts = costs.table.parts
        micros = (
            parts["tokens"].at(1088) + parts["context"].at(1024, 0) + parts["decode"].at(64, 1024)
        )
        extra = costs.price(both(first, second)).seconds - micros * MICRO
        assert (extra > 1e-4) is surcharge


def test_an_empty_step_costs_as_much_as_one_request() -> None:
    assert COSTS.price(BatchWork()) == COSTS.price(writing(1, 1))


def test_tokens_beyond_the_table_are_extrapolated_from_its_upper_half() -> None:
    parts = COSTS.table.parts["tokens"]
    each = (parts.at(2048) - parts.at(1024)) / 1024

    assert parts.at(1_000_000) == pytest.approx(parts.at(2048) + each * (1_000_000 - 2048))
    assert COSTS.price(prompt(1_000_000)).seconds > 400 * COSTS.price(prompt(2048)).seconds


def test_no_step_is_cheaper_than_the_smallest_of_the_table() -> None:
    """Beyond its last point, extrapolating a falling decode would become negative."""
    points = {(1.0, 16.0): 4e3, (1.0, 32.0): 3.9e3, (2.0, 16.0): 3.9e3, (2.0, 32.0): 3.8e3}
    falling = {**COSTS.table.parts, "decode": Grid(points)}
    costs = TableCosts(replace(COSTS.table, parts=falling), COSTS.roofline)

    least = COSTS.table.parts["tokens"].at(1) * MICRO
    assert costs.price(writing(1, 10_000_000)).seconds == least


@given(
    st.sampled_from(table_names()),
    st.integers(0, 16_384),
    st.integers(0, 100_000),
    st.integers(0, 1024),
    st.integers(1, 100_000),
)
def test_every_shipped_table_prices_any_step(
    name: str, tokens: int, before: int, requests: int, read: int
) -> None:
    costs = named_costs(name)
    work = both(prompt(tokens, before) if tokens else BatchWork(), writing(requests, read))

    price = costs.price(work)

    assert 1e-3 < price.seconds < 1e4
    assert 0 <= price.compute_ratio <= 1
    assert 0 <= price.memory_ratio <= 1


def test_every_shipped_table_states_its_source_and_is_small() -> None:
    tables = [shipped_table(name) for name in table_names()]

    assert len(tables) >= 10
    for table in tables:
        assert table.licence.startswith(("MIT, Copyright", "Apache-2.0, "))
        assert table.source.startswith(("github.com/", "PyPI ", "recorded by bench.gpu_steps "))


@pytest.mark.parametrize(
    ("gpu", "model", "gpus"),
    [(H100, LLAMA_8B, 1), (H100, LLAMA_70B, 4), (RTX_PRO_6000, LLAMA_8B, 1)],
)
def test_data_sheets_come_close_to_measurements(gpu: Gpu, model: Model, gpus: int) -> None:
    """The roofline is for what was not measured; here both are known."""
    table, sheet = table_costs(gpu, model, gpus), Roofline(gpu, model, gpus)

    for work in (prompt(256), prompt(2048), writing(16, 1200), writing(128, 1200)):
        assert sheet.price(work).seconds == pytest.approx(table.price(work).seconds, rel=0.25)


def test_a_throttled_gpu_is_slower_where_it_computes() -> None:
    hot = TableCosts(COSTS.table, replace(COSTS.roofline, clock_ratio=0.5))

    assert hot.price(prompt(2048)).seconds > 1.8 * COSTS.price(prompt(2048)).seconds
    assert hot.price(writing(8, 1000)).seconds < 1.1 * COSTS.price(writing(8, 1000)).seconds


def test_without_a_table_the_roofline_is_used() -> None:
    assert isinstance(best_costs(RTX_PRO_6000, LLAMA_8B, 1), TableCosts)
    assert best_costs(RTX_PRO_6000, LLAMA_8B, 4) == Roofline(RTX_PRO_6000, LLAMA_8B, 4)


def test_a_group_that_was_not_measured_is_refused_by_name() -> None:
    with pytest.raises(NoPriceTableError, match=r"no price table for meta-llama.* 65536 x NVIDIA"):
        table_costs(H100, LLAMA_8B, 65_536)
    with pytest.raises(NoPriceTableError, match=r"there are .*h100_llama-3.1-8b_1"):
        shipped_table("h100_llama-9")
    with pytest.raises(PriceMismatchError, match="a table of 1 GPUs does not price 2"):
        TableCosts(COSTS.table, Roofline(RTX_PRO_6000, LLAMA_8B, 2))


def test_a_table_of_a_gpu_or_a_model_that_is_unknown_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    text = (resources.files(prices) / "tables/h100_llama-3.1-8b_1.csv").read_text(encoding="utf-8")
    file.write_text(text.replace("NVIDIA H100 80GB HBM3", "NVIDIA H999"))

    with pytest.raises(NoPriceTableError, match=r"on NVIDIA H999; known are meta-llama"):
        named_costs(str(file))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(PriceTableError, match=r"table.csv: .*can't decode"):
        named_costs(str(file))


def test_ranks_that_share_experts_wait_for_the_slowest_and_communicate() -> None:
    costs = table_costs(RTX_PRO_6000, QWEN3_30B_A3B, 1)
    shared = ExpertParallelCosts(costs)
    much, little = both(prompt(1024), writing(64, 1000)), writing(8, 1000)

    uneven = shared.price((much, little)).seconds
    assert uneven == shared.price((little, much)).seconds
    assert uneven > shared.price((little, little)).seconds
    assert shared.price((much, BatchWork())).seconds < uneven
    exchange = 48 * RTX_PRO_6000.link.all_reduce_seconds(2 * 1088 * 2048 * 2, 2)
    assert uneven > exchange + costs.rank_seconds(much)
