"""The tiny model's folder: complete or absent, and never in place of something else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from disagg_cluster.demo.real_vllm import tiny_model
from disagg_cluster.demo.real_vllm.tiny_model import ModelFolderError, is_made, main, make, recipe

TINY = recipe(hidden=128, layers=2, seed=0)


def _write(folder: Path, wanted: dict[str, int]) -> None:
    (folder / "model.safetensors").write_text(str(wanted["layers"]))


def test_a_made_folder_is_not_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "tiny"

    assert make(folder, TINY, _write) is True
    assert make(folder, TINY, lambda *_: pytest.fail("written again")) is False

    assert (folder / "model.safetensors").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path, wanted: dict[str, int]) -> None:
        _write(folder, wanted)
        raise MemoryError

    with pytest.raises(MemoryError):
        make(tmp_path / "tiny", TINY, fail)

    assert list(tmp_path.iterdir()) == []


def test_a_concurrently_made_model_is_accepted(tmp_path: Path) -> None:
    def overtaken(folder: Path, wanted: dict[str, int]) -> None:
        make(tmp_path / "tiny", wanted, _write)
        (folder / "model.safetensors").write_text("late")

    assert make(tmp_path / "tiny", TINY, overtaken) is False

    assert (tmp_path / "tiny" / "model.safetensors").read_text() == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_another_model_or_folder_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "tiny", TINY, _write)
    (tmp_path / "letters").mkdir()

    with pytest.raises(ModelFolderError, match="another model"):
        is_made(tmp_path / "tiny", recipe(hidden=128, layers=64, seed=0))
    assert main([str(tmp_path / "letters")]) == 2
    assert "is no tiny model" in capsys.readouterr().err


@pytest.mark.parametrize(("hidden", "layers"), [(100, 2), (0, 2), (32, 2), (128, 0)])
def test_an_invalid_shape_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hidden: int, layers: int
) -> None:
    shape = ["--hidden", str(hidden), "--layers", str(layers)]

    assert main([str(tmp_path / "tiny"), *shape]) == 2

    assert "must be" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_model_maker_runs_as_a_script_without_our_packages(tmp_path: Path) -> None:
    make(tmp_path / "tiny", TINY, _write)

    done = subprocess.run(
        [sys.executable, "-I", "-S", str(tiny_model.__file__), str(tmp_path / "tiny")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path / 'tiny'}: already there\n"
