from __future__ import annotations

from pathlib import Path

import pytest

from disagg_cluster.cli.tuning.outcome import (
    REQUESTS,
    STEP_TOKENS,
    NothingToSetError,
    OutcomeOptions,
)
from disagg_cluster.cli.tuning.target import TargetOptions
from disagg_cluster.planner.capacity.learned.tune_profile import VERSION, TuneProfile

URL = "http://127.0.0.1:8100"
STEP, MOST = STEP_TOKENS["vllm"], REQUESTS["vllm"]


def written(folder: Path, args: str, option: str, value: int) -> str:
    """The node file after a recommendation was written into it."""
    file = folder / "node.yaml"
    worker = f"name: p, role: mixed, model: m, port: 8100, args: [{args}]"
    file.write_text(f"devices: cpu\nworkers:\n  - {{{worker}}}\n")
    OutcomeOptions(as_json=False, plot=None, profile=None, node_file=file).keep(
        TuneProfile(disagg_node_profile=VERSION, model_name="m", engine=URL),
        lambda _path: None,
        {"vllm": {option: value}, "sglang": {}},
        TargetOptions("p", None, (), None, None, None, live=False),
        URL,
    )
    return file.read_text()


@pytest.mark.parametrize(
    "args",
    [
        "--no-enable-chunked-prefill",
        '--no-enable-chunked-prefill, --max-model-len, "8192"',
        '--no_enable_chunked_prefill, --max-model-len, "8k"',
    ],
)
def test_no_step_below_the_longest_request_is_written_for_an_engine_without_chunks(
    args: str, tmp_path: Path
) -> None:
    """It would refuse to start: vLLM 0.26, SchedulerConfig.verify_max_model_len."""
    with pytest.raises(NothingToSetError, match="p runs with --no-enable-chunked-prefill"):
        written(tmp_path, args, STEP, 704)

    assert STEP not in (tmp_path / "node.yaml").read_text()


@pytest.mark.parametrize(
    ("args", "option", "value", "found"),
    [
        ('--no-enable-chunked-prefill, --max-model-len, "512"', STEP, 704, 704),
        ("--no-enable-chunked-prefill", MOST, 54, 54),
        ("--enable-chunked-prefill", STEP, 704, 704),
        ('--max-num-seqs, "1024"', STEP, 704, 1024),
    ],
)
def test_a_recommendation_is_written_as_the_other_arguments_allow(
    args: str, option: str, value: int, found: int, tmp_path: Path
) -> None:
    assert f'{option}, "{found}"' in written(tmp_path, args, option, value)
