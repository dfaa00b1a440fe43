from __future__ import annotations

import pytest

from disagg_cluster.deploy.first_node_file import MachineFindings, first_node_file
from disagg_cluster.nodefile import ELSEWHERE, parse
from disagg_exporter.model import Role

H100 = "NVIDIA H100 80GB HBM3"
VLLM = (("vllm", "/opt/vllm/bin/python"),)


@pytest.mark.parametrize("gpus", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("node", ["gpu-7", "7", "no", "a: b"])
def test_the_first_node_file_is_valid_if_its_model_and_python_exist(gpus: int, node: str) -> None:
    found = MachineFindings(node, (H100,) * gpus, VLLM, ("org/model-7B",))

    config = parse(first_node_file(found, "2026-11-23"), "node.yaml", ELSEWHERE)

    roles = [worker.role for worker in config.workers]
    assert roles == ([Role.PREFILL, Role.DECODE] if gpus > 1 else [Role.MIXED])
    assert config.node == node
    assert {worker.model for worker in config.workers} == {"org/model-7B"}
    assert {worker.python for worker in config.workers} == {"/opt/vllm/bin/python"}


@pytest.mark.parametrize(
    "name", ["\U0001f680", "é", "tab\t", 'a "quoted" \\ one', "\x85\u2028\x7f\U000e0001"]
)
def test_paths_of_any_characters_are_read_back_unchanged(name: str) -> None:
    python = f"/opt/{name}/bin/python"
    found = MachineFindings("gpu-7", (), (("vllm", python),) * 2, (f"/models/{name}", "a\nb"))

    config = parse(first_node_file(found, "2026-11-23"), "node.yaml", ELSEWHERE)

    assert [worker.model for worker in config.workers] == [f"/models/{name}"]
    assert [worker.python for worker in config.workers] == [python]


def test_missing_items_are_marked_by_comments_in_place() -> None:
    text = first_node_file(MachineFindings("gpu-7"), "2026-11-23")

    assert "# No GPU was found: the engine runs on the CPU." in text
    assert "# No interpreter with vllm or sglang was found: `python:` has to name one." in text
    assert "# `model:` has to name a folder, or a name on the hub." in text


def test_unused_findings_are_listed_too() -> None:
    found = MachineFindings(
        "gpu-7", (H100, H100, "A100"), (*VLLM, ("sglang", "/opt/sg/bin/python")), ("a/b", "c/d")
    )

    text = first_node_file(found, "2026-11-23")

    assert f"# Found: 1 x A100, 2 x {H100}" in text
    assert "# Also found: sglang in /opt/sg/bin/python" in text
    assert "# Models in the hub's cache: a/b, c/d" in text
