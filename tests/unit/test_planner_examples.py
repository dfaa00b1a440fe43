"""The content of examples/planner: a file, a unit, and autoscalers on the plan's metric."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from disagg_cluster.planner.outlook.horizons import duration
from disagg_cluster.planner.plan.model_rows import HORIZONS_SECONDS
from disagg_cluster.planner.settings.planner_file import read_planner_file
from disagg_exporter.metrics.table import FAMILIES

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "planner"
PLAN_GPUS = next(family for family in FAMILIES if family.name == "disagg_plan_gpus")


def test_the_planner_file_is_valid_and_offers_both_roles() -> None:
    config = read_planner_file(EXAMPLES / "planner.yaml")

    assert config.lock_file == "/run/disagg-planner/lock"
    assert {each.role.value for each in config.models[0].workers} == {"prefill", "decode"}


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed: the unit was not verified")
    text = (EXAMPLES / "disagg-planner.service").read_text(encoding="utf-8")
    unit = tmp_path / "disagg-planner.service"
    unit.write_text(text.replace("/usr/local/bin/disagg-node", "/bin/true"))

    done = subprocess.run([tool, "verify", "--man=no", unit], capture_output=True, text=True)

    told = [line for line in done.stderr.splitlines() if "disagg-planner.service" in line]
    assert told == []


def test_the_dynamic_user_of_the_unit_may_read_its_planner_file() -> None:
    """A dynamic user is neither root nor of root's group."""
    text = (EXAMPLES / "disagg-planner.service").read_text(encoding="utf-8")
    mode = re.search(r"install -m (\d+) planner\.yaml", text)

    assert "DynamicUser=yes" in text
    assert mode is not None
    assert int(mode[1], 8) & 0o004


def test_the_lock_is_in_the_runtime_folder_of_the_unit() -> None:
    text = (EXAMPLES / "disagg-planner.service").read_text(encoding="utf-8")
    folder = re.search(r"^RuntimeDirectory=(.+)$", text, re.MULTILINE)

    assert folder is not None
    lock = read_planner_file(EXAMPLES / "planner.yaml").lock_file
    assert lock is not None
    assert Path(lock).parent == Path("/run") / folder[1]


@pytest.mark.parametrize("version", ["1.28", "1.33", "1.37"])
def test_the_autoscaler_fits_the_schemas_of_kubernetes(version: str) -> None:
    manifest = yaml.safe_load((EXAMPLES / "hpa.yaml").read_text(encoding="utf-8"))

    kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("name", ["keda.yaml", "hpa.yaml"])
def test_autoscalers_query_a_metric_that_the_planner_exports(name: str) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    asked = dict(re.findall(r'(\w+)="([^"]+)"', text))

    assert "disagg_plan_gpus" in text
    assert set(asked) - {"cluster"} <= set(PLAN_GPUS.labels)
    assert asked["kind"] == "recommended"
    assert asked["horizon"] in {duration(each) for each in HORIZONS_SECONDS}


@pytest.mark.parametrize(
    ("name", "asks"),
    [("keda.yaml", 'engine_namespace="serving"'), ("hpa.yaml", "engine_namespace: serving")],
)
def test_an_autoscaler_follows_the_plan_of_its_own_namespace(name: str, asks: str) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")

    assert yaml.safe_load(text)["metadata"]["namespace"] == "serving"
    assert asks in text
