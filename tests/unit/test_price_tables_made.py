"""Price tables made from measurements: the parts of steps add up to the measured times."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.real.recorded import DATA
from bench.simulator import aiconfigurator, gpu_steps, llmservingsim

from disagg_cluster.simulator.engine.hardware import GPUS, H100, LLAMA_8B, MODELS, RTX_PRO_6000
from disagg_cluster.simulator.engine.roofline import BatchWork, Roofline
from disagg_cluster.simulator.prices import shipped as tables
from disagg_cluster.simulator.prices.shipped import table_names
from disagg_cluster.simulator.prices.table import parse_table
from disagg_cluster.simulator.prices.table_costs import TableCosts
from disagg_cluster.simulator.prices.table_text import read_text, render_table

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


@pytest.mark.parametrize("name", table_names())
def test_a_shipped_table_is_as_its_converter_writes_it(name: str) -> None:
    """Others' measurements are not here: their points, format and licence are. Ours are."""
    text = (Path(tables.__file__).parent / "tables" / f"{name}.csv").read_text(encoding="utf-8")
    head, values, problems = read_text(text)

    assert problems == []
    assert render_table(head, values) == text
    if head["source"] == llmservingsim.SOURCE:
        assert head["licence"] == llmservingsim.LICENCE
        assert head["gpu"] == RTX_PRO_6000.name
        assert head["model"] in {model.name for model in llmservingsim.MODELS.values()}
        assert head["all_reduce"] == ("none" if head["gpus"] == "1" else "excluded")
        return
    if head["licence"] == gpu_steps.LICENCE:
        assert gpu_steps.convert_folder(DATA) == text
        return
    assert "aiconfigurator" in head["source"]
    gpu = next(each for each in GPUS if each.name == head["gpu"])
    model = next(each for each in MODELS if each.name == head["model"])
    made = aiconfigurator.convert(said, gpu, model, int(head["gpus"]), head["source"])
    made_head, made_values, _ = read_text(made)
    assert made_head == head
    assert {part: set(points) for part, points in made_values.items()} == {
        part: set(points) for part, points in values.items()
    }
