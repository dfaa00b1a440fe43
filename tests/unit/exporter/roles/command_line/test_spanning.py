"""Which part of an engine on several nodes a command line starts.

The lines are those of the projects' own documents and sources, with addresses filled in: vLLM's
pages on parallelism and data-parallel deployment, SGLang's multi-node page, Dynamo's multi-node
pages and operator, and manifests of LeaderWorkerSets.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.roles.command_line.spanning import EnginePart
from disagg_exporter.roles.evidence.command_line import parse_command_line

VLLM_OVER_NODES = (
    "vllm serve /path/to/the/model --tensor-parallel-size 8 --pipeline-parallel-size 2 "
    "--nnodes 2 --node-rank {} --master-addr 10.0.0.1"
)
VLLM_RANKS = (
    "vllm serve m --data-parallel-size 4 --data-parallel-size-local {} "
    "--data-parallel-address 10.99.48.128 --data-parallel-rpc-port 13345"
)
SGLANG = (
    "python3 -m sglang.launch_server --model-path m --tp 16 "
    "--dist-init-addr 172.16.4.52:20000 --nnodes 2 --node-rank {}"
)
DYNAMO_SGLANG = (
    "python3 -m dynamo.sglang --model-path /model/ --tp 16 --dp-size 16 --enable-dp-attention "
    "--dist-init-addr 10.0.0.7:29500 --nnodes 2 --node-rank {} --disaggregation-mode prefill"
)
DYNAMO_VLLM = (
    "python3 -m dynamo.vllm --model m --distributed-executor-backend mp --nnodes 2 "
    "--master-addr $(LWS_LEADER_ADDRESS) --master-port 29500 --node-rank $(LWS_WORKER_INDEX)"
)
SCRIPT = (
    "cd /sgl-workspace && python3 -m sglang.launch_server --model-path m --tp 16 "
    "--dist-init-addr 10.0.0.5:20000 --nnodes $LWS_GROUP_SIZE --node-rank $LWS_WORKER_INDEX"
)


def part(text: str, **env: str) -> EnginePart | None:
    """Return which part it is, without the name of the model."""
    found = parse_command_line(shlex.split(text), env).part
    return found and replace(found, model_name="")


@pytest.mark.parametrize(
    ("text", "head", "rank"),
    [
        (VLLM_OVER_NODES.format(1) + " --headless", "10.0.0.1:29501", 1),
        (VLLM_OVER_NODES.format(1) + " --headless --master-port 2", "10.0.0.1:2", 1),
        (VLLM_RANKS.format(2) + " --headless --data-parallel-start-rank 2", None, 2),
        ("vllm serve m -dp 4 -dpl 2 -dpr 2 -dpa 10.99.48.128 -dpp 13345 --headless", None, 2),
        ("vllm serve m -dp 4 -dpr 2 -dpa 10.99.48.128 -dpp 13345 --api-server-count 0", None, 2),
        ("vllm serve m --headless -n 2 -r 1", "127.0.0.1:29501", 1),
        ("vllm serve m --headless --nnodes 4 --node-rank 3 --data-parallel-size 2 "
         "--data-parallel-external-lb --master-addr a", "a:29501", 3),
        (SGLANG.format(1), "172.16.4.52:20000", 1),
        (SGLANG.replace("--dist-init-addr", "--nccl-init-addr").format(3), "172.16.4.52:20000", 3),
        (DYNAMO_SGLANG.format(1), "10.0.0.7:29500", 1),
        ("sglang serve --model-path m --nnodes=2 --node-rank=1 --dist-init-addr=[fd00::1]:5",
         "[fd00::1]:5", 1),
    ],
)  # fmt: skip
def test_options_identify_a_follower_and_its_leader(text: str, head: str | None, rank: int) -> None:
    assert part(text) == EnginePart(head or "10.99.48.128:13345", rank, follows=True)


@pytest.mark.parametrize(
    ("text", "head", "local_ranks"),
    [
        (VLLM_OVER_NODES.format(0), "10.0.0.1:29501", None),
        (VLLM_RANKS.format(2), "10.99.48.128:13345", 2),
        (VLLM_RANKS.format(0), "10.99.48.128:13345", 0),
        ("vllm serve m --nnodes 2 --data-parallel-size 4 --master-addr a", "a:29501", 2),
        (SGLANG.format(0), "172.16.4.52:20000", None),
        (DYNAMO_SGLANG.format(0), "10.0.0.7:29500", None),
    ],
)
def test_the_leader_is_distinguished_from_its_followers(
    text: str, head: str, local_ranks: int | None
) -> None:
    assert part(text) == EnginePart(head, 0, follows=False, local_ranks=local_ranks)


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --tensor-parallel-size 8",
        "vllm serve m --data-parallel-size 8",
        # Each of these nodes has a server, which reports its own ranks.
        VLLM_RANKS.format(2) + " --data-parallel-hybrid-lb",
        VLLM_RANKS.format(2) + " --data-parallel-start-rank 2",
        "vllm serve m --data-parallel-size 2 --data-parallel-rank 1 --data-parallel-address a",
        "python3 -m sglang.launch_server --model-path m --tp 8",
        "python3 -m dynamo.vllm --model m --no-headless",
        "trtllm-serve m --tp_size 16",
    ],
)
def test_an_engine_with_its_own_server_is_no_part(text: str) -> None:
    assert part(text) is None


@pytest.mark.parametrize(("said", "follows"), [("1", True), ("true", True), ("0", False)])
def test_dynamos_headless_variable_decides_whether_an_engine_follows(
    said: str, follows: bool
) -> None:
    found = part(
        DYNAMO_VLLM, DYN_VLLM_HEADLESS=said, LWS_LEADER_ADDRESS="a.b", LWS_WORKER_INDEX="1"
    )

    assert found is not None
    assert (found.head, found.follows) == ("a.b:29500", follows)
    assert part("vllm serve m", DYN_VLLM_HEADLESS="1") is None


@pytest.mark.parametrize(("index", "follows"), [("1", True), ("0", False)])
def test_a_pod_index_variable_decides_whether_an_engine_follows(index: str, follows: bool) -> None:
    found = parse_command_line(["sh", "-c", SCRIPT], {"LWS_WORKER_INDEX": index}).part

    assert found is not None
    assert found.follows is follows


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (VLLM_OVER_NODES.format(1) + " --headless", "/path/to/the/model"),
        (VLLM_OVER_NODES.format(1) + " --headless --served-model-name big huge", "big"),
        ("vllm serve --headless -n 2", ""),
        ("vllm serve $MODEL --headless -n 2", ""),
        (SGLANG.format(1), "m"),
        (DYNAMO_SGLANG.format(1) + " --served-model-name=r1", "r1"),
        (DYNAMO_VLLM + " --headless", "m"),
    ],
)
def test_a_follower_has_its_leaders_model(text: str, name: str) -> None:
    found = parse_command_line(shlex.split(text), {}).part

    assert found is not None
    assert found.model_name == name


def test_a_script_that_may_start_either_is_no_evidence() -> None:
    lead, follow = VLLM_OVER_NODES.format(0), VLLM_OVER_NODES.format(1)
    script = f"if [ $I = 0 ]; then {lead}; else {follow} --headless; fi"

    assert parse_command_line(["bash", "-c", script], {}).part is None
    assert parse_command_line(["bash", "-c", SCRIPT], {}).part is None


@given(st.text(max_size=80))
def test_an_invalid_address_is_never_shown(text: str) -> None:
    argv = ["vllm", "serve", "m", "--headless", "--nnodes", "2", f"--master-addr={text}"]

    found = parse_command_line(argv, {}).part

    assert found is None or found.head == "" or found.head.isascii()
    assert found is None or not set(found.head) & set(" \t\n\"'<>$&;=/@")
