"""A held folder: written to as it is mounted now, and never replaced by another."""

import shutil
import subprocess
from pathlib import Path

import pytest

from disagg_cluster.host.files.atomic_write import HeldFolder
from disagg_exporter.errors import DisaggError
from support.children import descriptors


def test_a_file_is_written_by_its_path_until_the_folder_is_held(tmp_path: Path) -> None:
    assert HeldFolder(tmp_path).at(tmp_path / "file") == tmp_path / "file"


def test_an_unintended_folder_is_not_held(tmp_path: Path) -> None:
    before = descriptors()
    (tmp_path / "mine").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    folder = HeldFolder(tmp_path / "run")

    with pytest.raises(DisaggError, match="somebody has just replaced"):
        folder.hold("mine", (tmp_path / "mine").stat())
    assert folder.at(tmp_path / "run" / "mine") == tmp_path / "run" / "mine"
    assert descriptors() == before


def test_a_folder_mounted_read_only_is_not_written_to(tmp_path: Path) -> None:
    """A descriptor of the folder from before the mount would allow it."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "mine").touch()
    folder = HeldFolder(run)
    folder.hold("mine", (run / "mine").stat())
    mount = ["mount", "--bind", str(run), str(run)]
    if not shutil.which("mount") or subprocess.run(mount, check=False).returncode:
        pytest.skip("we may not mount anything")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(run)], check=True)
        with pytest.raises(OSError, match="Read-only file system"):
            folder.at(run / "file").write_text("x")
    finally:
        subprocess.run(["umount", "-l", str(run)], check=True)
    folder.at(run / "file").write_text("x")
    folder.close()

    assert (run / "file").read_text() == "x"
