"""Price tables made from others' measurements: the parts of steps add up to the measured times."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.simulator import aiconfigurator, llmservingsim

from disagg_cluster.simulator.engine.hardware import H100, LLAMA_8B
from disagg_cluster.simulator.engine.roofline import BatchWork, Roofline
from disagg_cluster.simulator.prices.shipped import shipped_table
from disagg_cluster.simulator.prices.table import parse_table
from disagg_cluster.simulator.prices.table_costs import TableCosts

LAYERS = LLAMA_8B.layers


def said(work: BatchWork) -> float:
    """Return the microseconds of a step, as by an estimator."""
    tokens = work.context_tokens + work.writers
    return 5000 + 20 * tokens + 1e-4 * work.context_pairs + 3e-2 * work.writers_kv_tokens


@pytest.mark.parametrize(
    "work",
    [
        BatchWork(512, 512 * 513 // 2, 512),
        BatchWork(2048, 2048 * 4096 + 2048 * 2049 // 2, 6144),
        BatchWork(writers=64, writers_kv_tokens=64 * 1024),
        BatchWork(writers=256, writers_kv_tokens=256 * 8192),
    ],
)
def test_a_step_composed_of_kernels_has_the_measured_duration(work: BatchWork) -> None:
    text = aiconfigurator.convert(said, H100, LLAMA_8B, 1, "PyPI, made up")
    costs = TableCosts(parse_table(text), Roofline(H100, LLAMA_8B))

    assert costs.price(work).seconds == pytest.approx(said(work) * 1e-6, rel=0.002)


def test_layers_are_summed_over_the_model(tmp_path: Path) -> None:
    layers = [f"{name},{size},{size}" for name in ("embedding", "layernorm") for size in (16, 32)]
    (tmp_path / "dense.csv").write_text("\n".join(["layer,tokens,time_us", *layers]))
    head = [f"lm_head,{size},{size}" for size in (1, 2)]
    (tmp_path / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *head]))
    rows = [
        f"{chunk},{before},{n},{read},{1 + chunk + n}"
        for chunk in (0, 16, 128)
        for before in ((0, 1024) if chunk else (0,))
        for n in (0, 1, 16)
        for read in ((16, 512) if n else (0,))
        if chunk or n
    ]
    columns = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
    (tmp_path / "attention.csv").write_text("\n".join([columns, *rows]))

    table = parse_table(llmservingsim.convert(tmp_path, LLAMA_8B, 1))

    assert table.parts["tokens"].at(32) == 32 + 2 * LAYERS * 32
    assert table.parts["requests"].at(2) == 2
    assert table.parts["context"].at(128, 1024) == LAYERS * 129
    assert table.parts["decode"].at(16, 512) == LAYERS * 17
    assert table.parts["mixed"].at(128, 1024, 16, 512) == LAYERS * 145


def test_shipped_tables_have_the_licence_of_their_source() -> None:
    assert shipped_table("h100_llama-3.1-8b_1").licence == aiconfigurator.LICENCE
    assert shipped_table("rtx-pro-6000_qwen3-32b_2").licence == llmservingsim.LICENCE
