from __future__ import annotations

import sys
from pathlib import Path

import pytest

from disagg_cluster.config import Worker
from disagg_cluster.nodefile.reading import launching_host, why_no_model


def worker(model: str, python: str = sys.executable, **env: str) -> Worker:
    return Worker.model_validate(
        {
            **{"name": "w", "role": "mixed", "engine": "vllm", "model": model, "gpus": 0},
            **{"port": 8000, "python": python, "env": env},
        }
    )


def test_an_interpreter_without_the_engine_is_told_before_the_first_crash(tmp_path: Path) -> None:
    there = tmp_path / "vllm"
    there.mkdir()
    (there / "__init__.py").write_text("raise SystemExit('it must not be imported')\n")
    host = launching_host()

    assert host.why_no_engine(worker("m")) == f"{sys.executable} has no module vllm"
    assert host.why_no_engine(worker("m", PYTHONPATH=str(tmp_path))) == ""


def test_an_engine_that_was_installed_since_is_there_when_the_file_is_read_again(
    tmp_path: Path,
) -> None:
    one = worker("m", PYTHONPATH=str(tmp_path))
    assert launching_host().why_no_engine(one) != ""

    (tmp_path / "vllm.py").touch()
    assert launching_host().why_no_engine(one) == ""


def test_what_cannot_be_asked_is_not_called_wrong(tmp_path: Path) -> None:
    why_no_engine = launching_host().why_no_engine
    assert why_no_engine(worker("m", python=str(tmp_path / "absent"))) == ""
    assert why_no_engine(worker("m", python="/bin/false")) == ""


def test_a_folder_that_holds_no_model_is_told(tmp_path: Path) -> None:
    assert why_no_model(worker(str(tmp_path))) == (
        f"{tmp_path} holds no config.json: it is no folder of a model"
    )

    (tmp_path / "config.json").write_text("{}")
    assert why_no_model(worker(str(tmp_path))) == ""


@pytest.mark.parametrize(("offline", "told"), [("1", True), ("0", False)])
def test_a_name_of_the_hub_that_can_be_loaded_from_nowhere_is_told(
    tmp_path: Path, offline: str, told: bool
) -> None:
    model = worker("org/model", HF_HUB_OFFLINE=offline, HF_HOME=str(tmp_path))
    assert ("HF_HUB_OFFLINE keeps it from loading" in why_no_model(model)) is told

    (tmp_path / "hub" / "models--org--model").mkdir(parents=True)
    assert why_no_model(model) == ""
