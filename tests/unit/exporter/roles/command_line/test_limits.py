from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.model import StepLimits
from disagg_exporter.roles.command_line.limits import step_limits


@pytest.mark.parametrize(
    ("command", "limits"),
    [
        ("vllm serve m --max-num-batched-tokens 8192 --max-num-seqs=64", (8192, 64)),
        ("vllm serve m --max_num_batched_tokens 8k --max-num-seqs 1K", (8000, 1024)),
        ("vllm serve m --max-num-batched-tokens 2048 --max-num-batched-tokens 512", (512, None)),
        ("vllm serve m", (None, None)),
        (
            "python -m sglang.launch_server --chunked-prefill-size 4096 --max-running-requests 32",
            (4096, 32),
        ),
        ("python -m sglang.launch_server --chunked-prefill-size -1", (None, None)),
        ("trtllm-serve m --max_num_tokens 16384 --max_batch_size 256", (16384, 256)),
        ("vllm serve m --max-num-seqs ${SEQS} --max-num-batched-tokens 0", (None, None)),
        ("vllm serve m --max-num-seqs 1.5k --max-num-batched-tokens 1.0005k", (None, 1500)),
        ("vllm serve m --max-num-seqs 999999999M --max-num-batched-tokens", (None, None)),
    ],
)
def test_limits_come_from_the_command(command: str, limits: tuple[int | None, int | None]) -> None:
    assert step_limits(command.split()) == limits


@given(st.lists(st.sampled_from(["--max-num-seqs", "--max-num-seqs="]) | st.text(max_size=8)))
def test_any_command_has_limits_above_0_or_none(argv: list[str]) -> None:
    assert all(limit is None or 0 < limit < 2**31 for limit in step_limits(argv))
    assert step_limits([]) == StepLimits()
