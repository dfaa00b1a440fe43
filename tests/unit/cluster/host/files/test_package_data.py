from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Literal

import pytest

from disagg_cluster.config.layout import place
from disagg_cluster.host.files.package_data import asset_dir, engine_side_folder
from disagg_cluster.launch.command import build
from disagg_cluster.launch.router_command import router_command
from disagg_cluster.nodefile import expected_devices, load
from support.node_files import HAS_ALL

GOLDEN = Path(__file__).parents[4] / "data" / "examples"
EXAMPLES = sorted(
    path.name
    for path in (Path(__file__).parents[5] / "examples").glob("*.yaml")
    if path.name != "compose.yaml"  # for Docker
)


@pytest.mark.parametrize("kind", ["grafana", "alerts", "examples"])
def test_shipped_files_are_found(kind: Literal["grafana", "alerts", "examples"]) -> None:
    assert [entry.name for entry in asset_dir(kind).iterdir()]


def test_the_examples_are_shipped() -> None:
    assert asset_dir("examples").joinpath("one-gpu-each.yaml").is_file()


def test_the_engine_side_folder_has_the_plugin_and_its_dist_info() -> None:
    names = sorted(path.name for path in engine_side_folder().iterdir())

    assert "disagg_steps" in names
    assert any(name.endswith(".dist-info") for name in names)


def started_by(name: str) -> str:
    """Return what an example starts, with its part of the environment."""
    config = load(Path(str(asset_dir("examples"))) / name, HAS_ALL)
    layout = place(config, expected_devices(config))
    folder = Path("RUN")
    commands = {
        worker.name: build(
            worker,
            layout.of(worker.name),
            steps_socket=folder / f"{worker.name}.sock",
            engine_side_folder=Path("PLUGIN"),
        )
        for worker in config.workers
    }
    if config.router is not None:
        commands["router"] = router_command(config, config.router)
    texts = []
    for worker, command in commands.items():
        variables = [f"  {key}={value}" for key, value in sorted(command.env.items())]
        texts.append("\n".join([f"{worker}:", *variables, f"  {shlex.join(command.argv)}"]))
    checkout = f"{asset_dir('examples').parent}/"
    return "\n\n".join(texts).replace(sys.executable, "PYTHON").replace(checkout, "") + "\n"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_starts_the_expected_commands(name: str) -> None:
    """Written anew by DISAGG_WRITE_GOLDEN=1; read the difference before committing it.

    Model folders and interpreters that it names need not exist; everything else must be valid.
    """
    golden = GOLDEN / f"{Path(name).stem}.txt"
    started = started_by(name)
    if os.environ.get("DISAGG_WRITE_GOLDEN") == "1":
        golden.write_text(started, encoding="utf-8")

    assert started == golden.read_text(encoding="utf-8")


def test_the_two_nodes_of_one_model_find_each_other() -> None:
    """The decode node's router names the very addresses on which the prefill node listens."""
    prefill, decode = (
        load(Path(str(asset_dir("examples"))) / f"llama-70b-{half}-node.yaml", HAS_ALL)
        for half in ("prefill", "decode")
    )
    assert decode.router is not None

    assert tuple(worker.url for worker in prefill.workers) == decode.router.prefill
    names = {worker.model_name for config in (prefill, decode) for worker in config.workers}
    assert names == {"llama-3.3-70b"}
