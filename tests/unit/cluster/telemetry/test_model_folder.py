from __future__ import annotations

import json
from pathlib import Path

import pytest

from disagg_cluster.config import Worker
from disagg_cluster.telemetry.launched_engines import MAX_CONFIG_BYTES, model_size
from disagg_exporter.model import Role

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "torch_dtype": "float16",
}


def worker(model: Path | str, **more: object) -> Worker:
    return Worker(name="w", role=Role.PREFILL, model=str(model), port=8100, **more)  # type: ignore[arg-type] # checked by it


def test_the_size_of_a_model_folder_is_read_from_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    size = model_size(worker(tmp_path))

    assert size is not None
    assert size.layer_parameters == 2 * (4 * 64 * 64 + 3 * 64 * 128)


@pytest.mark.parametrize(
    "text",
    [None, "", "no json", "[]", "[" * 100_000, "{" + " " * MAX_CONFIG_BYTES + "}", '{"a": 1}'],
)
def test_a_folder_without_a_readable_config_has_no_size(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)

    assert model_size(worker(tmp_path)) is None


@pytest.mark.parametrize(
    "args", [("--dtype", "float32"), ("--quantization=fp8",), ("--kv_cache_dtype", "fp8")]
)
def test_a_dtype_or_quantization_argument_leaves_the_size_unknown(
    tmp_path: Path, args: tuple[str, ...]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    assert model_size(worker(tmp_path, args=args)) is None


def test_a_hub_model_and_a_stand_in_have_no_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    assert model_size(worker("meta-llama/Llama-3.1-8B-Instruct")) is None
    assert model_size(worker(tmp_path, engine="standin")) is None
