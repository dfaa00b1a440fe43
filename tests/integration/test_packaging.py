"""What is shipped: from the sdist, through the wheel built of it, to a fresh interpreter."""

from __future__ import annotations

import email
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import importlib.metadata
from disagg_cluster.host.files.package_data import asset_dir, engine_side_folder
from disagg_cluster.demo.real_vllm.environment import CALM_WAITS

print(asset_dir("alerts").joinpath("rules", "disagg-recording.yaml").is_file())
print(asset_dir("alerts").joinpath("alertmanager.yaml").is_file())
print(asset_dir("examples").joinpath("mixed.yaml").is_file())
print(asset_dir("grafana").joinpath("dashboards", "cluster.json").is_file())
found = importlib.metadata.distributions(path=[str(engine_side_folder())])
print([e.name for d in found for e in d.entry_points])
found = importlib.metadata.distributions(path=[str(CALM_WAITS)])
print([e.name for d in found for e in d.entry_points])
"""
EXPECTED = ["True", "True", "True", "True", "['disagg_steps']", "['disagg_calm_waits']"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel built of the sdist was installed, without dependencies."""
    folder = tmp_path_factory.mktemp("packaging")
    run = [sys.executable, "-m"]
    subprocess.run([*run, "build", "--outdir", folder, ROOT], check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    target = folder / "site"
    subprocess.run(
        [*run, "pip", "install", "--quiet", "--no-deps", "--target", target, wheel], check=True
    )
    return target


def _ask(path: Path | None) -> list[str]:
    environment = {"PYTHONPATH": str(path)} if path is not None else {}
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return answer.stdout.splitlines()


def test_a_wheel_built_from_the_sdist_contains_every_shipped_file(installed: Path) -> None:
    assert (installed / "disagg_cluster" / "_assets" / "alerts").is_dir()
    assert _ask(installed) == EXPECTED


def test_the_long_description_needs_no_file_of_the_repository(installed: Path) -> None:
    """It has no relative link, no picture and no made-up project address."""
    [record] = installed.glob("disagg_node-*.dist-info/METADATA")
    said = email.message_from_string(record.read_text(encoding="utf-8"))
    text = str(said.get_payload())

    assert text.startswith("# disagg-node\n")
    assert "![" not in text
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not link.startswith(("https://", "http://"))] == []
    assert said.get_all("Project-URL") is None


def test_only_files_that_grafana_reads_are_shipped_of_the_dashboards(installed: Path) -> None:
    """Their builders need a library that an installation does not have."""
    shipped = installed / "disagg_cluster" / "_assets" / "grafana"

    assert {path.suffix for path in shipped.rglob("*") if path.is_file()} == {".json", ".yaml"}


def test_an_editable_install_finds_every_shipped_file_in_the_checkout() -> None:
    assert _ask(None) == EXPECTED
