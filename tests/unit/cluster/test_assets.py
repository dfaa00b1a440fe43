from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from disagg_cluster.assets import asset_dir, engine_side_folder
from disagg_cluster.nodefile import load
from disagg_cluster.rundir import default_run_dir
from support.node_files import HAS_ALL

EXAMPLES = sorted(path.name for path in (Path(__file__).parents[3] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("kind", ["grafana", "alerts", "examples"])
def test_what_we_ship_is_found(kind: Literal["grafana", "alerts", "examples"]) -> None:
    assert [entry.name for entry in asset_dir(kind).iterdir()]


def test_the_examples_are_shipped() -> None:
    assert asset_dir("examples").joinpath("one-gpu-each.yaml").is_file()


def test_the_engine_side_holds_the_plugin_and_how_vllm_finds_it() -> None:
    names = sorted(path.name for path in engine_side_folder().iterdir())

    assert "disagg_steps" in names
    assert any(name.endswith(".dist-info") for name in names)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_can_be_started(name: str) -> None:
    """Folders and programs that it names are somebody else's; everything else must be right."""
    path = Path(str(asset_dir("examples"))) / name

    assert load(path, HAS_ALL).workers


def test_the_run_directory_is_the_session_s_the_system_s_or_the_user_s() -> None:
    assert default_run_dir({"XDG_RUNTIME_DIR": "/run/user/7"}, 7) == Path("/run/user/7/disagg-node")
    assert default_run_dir({}, 0) == Path("/run/disagg-node")
    assert default_run_dir({"HOME": "/home/me"}, 7) == Path("/home/me/.cache/disagg-node")
