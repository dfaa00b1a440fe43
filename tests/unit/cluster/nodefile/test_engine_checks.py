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


def test_an_interpreter_without_the_engine_is_reported_without_an_import(tmp_path: Path) -> None:
    there = tmp_path / "vllm"
    there.mkdir()
    (there / "__init__.py").write_text("raise SystemExit('it must not be imported')\n")
    host = launching_host()

    assert host.why_no_engine(worker("m")) == f"{sys.executable} has no module vllm"
    assert host.why_no_engine(worker("m", PYTHONPATH=str(tmp_path))) == ""


def test_an_engine_on_the_daemons_own_search_path_is_found_beside_a_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the worker is started: its path, then the daemon's."""
    (tmp_path / "vllm.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert launching_host().why_no_engine(worker("m", PYTHONPATH="/somewhere/else")) == ""


def test_an_engine_installed_later_is_found_when_the_file_is_read_again(
    tmp_path: Path,
) -> None:
    one = worker("m", PYTHONPATH=str(tmp_path))
    assert launching_host().why_no_engine(one) != ""

    (tmp_path / "vllm.py").touch()
    assert launching_host().why_no_engine(one) == ""


def test_an_interpreter_that_gives_no_answer_is_not_reported(tmp_path: Path) -> None:
    why_no_engine = launching_host().why_no_engine
    assert why_no_engine(worker("m", python=str(tmp_path / "absent"))) == ""
    assert why_no_engine(worker("m", python="/bin/false")) == ""


def test_a_folder_without_a_model_is_reported(tmp_path: Path) -> None:
    assert why_no_model(worker(str(tmp_path))) == (
        f"{tmp_path} holds no config.json: it is no folder of a model"
    )

    (tmp_path / "config.json").write_text("{}")
    assert why_no_model(worker(str(tmp_path))) == ""


@pytest.mark.parametrize(("offline", "told"), [("1", True), ("0", False)])
def test_an_uncached_hub_model_is_reported_in_offline_mode(
    tmp_path: Path, offline: str, told: bool
) -> None:
    model = worker("org/model", HF_HUB_OFFLINE=offline, HF_HOME=str(tmp_path))
    assert ("HF_HUB_OFFLINE keeps it from loading" in why_no_model(model)) is told

    (tmp_path / "hub" / "models--org--model").mkdir(parents=True)
    assert why_no_model(model) == ""
