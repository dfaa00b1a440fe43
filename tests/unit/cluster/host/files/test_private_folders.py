"""The run folder is ours alone, or is refused with a remedy."""

import os
from pathlib import Path

import pytest

from disagg_cluster.host.files.private_files import UnsafeDirError, make_inner, make_private
from disagg_cluster.host.run_dir.layout import is_ours

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_created_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "run"

    assert make_private(folder, is_ours) == ()
    assert mode(folder) == 0o700
    assert make_private(folder, is_ours) == ()


@pytest.mark.parametrize("was", [0o755, 0o750, 0o777])
def test_our_open_folder_is_closed_and_reported(tmp_path: Path, was: int) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "lock").touch()
    folder.chmod(was)

    [note] = make_private(folder, is_ours)
    assert f"(mode 0{was:o}) and is closed to them now" in note
    assert mode(folder) == 0o700


def test_a_foreign_folder_is_left_alone_and_reported(tmp_path: Path) -> None:
    """`run_dir: /run`, as root: closing that to others would stop the whole machine."""
    folder = tmp_path / "run"
    (folder / "dbus").mkdir(parents=True)
    (folder / "lock").touch()
    folder.chmod(0o755)

    [note] = make_private(folder, is_ours)
    assert "holds other things than ours: it stays so" in note
    assert mode(folder) == 0o755


@pytest.mark.parametrize("was", [0o777, 0o1777, 0o770])
def test_a_foreign_writable_folder_is_refused(tmp_path: Path, was: int) -> None:
    folder = tmp_path / "run"
    (folder / "dbus").mkdir(parents=True)
    folder.chmod(was)

    with pytest.raises(UnsafeDirError, match="choose a folder of its own"):
        make_private(folder, is_ours)
    assert mode(folder) == was


@needs_root
def test_files_of_others_in_an_open_folder_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "lock").touch()
    (folder / "journal.json").touch()
    os.chown(folder / "journal.json", NOBODY, NOBODY)
    folder.chmod(0o777)

    with pytest.raises(UnsafeDirError, match=r"journal\.json in it belongs to one of them"):
        make_private(folder, is_ours)


@needs_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)

    with pytest.raises(UnsafeDirError, match=rf"belongs to another user \(uid {NOBODY}\); choose"):
        make_private(folder, is_ours)


@needs_root
@pytest.mark.parametrize("where", ["run", "above"])
def test_a_link_of_another_user_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / where).symlink_to(tmp_path / "elsewhere")
    os.lchown(tmp_path / where, NOBODY, NOBODY)

    path = tmp_path / "run" if where == "run" else tmp_path / "above" / "run"
    with pytest.raises(UnsafeDirError, match="is a link that another user laid"):
        make_private(path, is_ours)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_of_our_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "big-disk").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "big-disk")

    assert make_private(tmp_path / "link" / "run", is_ours) == ()
    assert (tmp_path / "big-disk" / "run").is_dir()


def test_a_path_with_a_replaceable_folder_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)

    with pytest.raises(UnsafeDirError, match=r"anybody may replace what is in .*; choose another"):
        make_private(shared / "run", is_ours)
    shared.chmod(0o1777)
    assert make_private(shared / "run", is_ours) == ()


def test_a_file_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").touch()

    with pytest.raises(FileExistsError):
        make_private(tmp_path / "run", is_ours)


def test_an_inner_folder_is_closed_and_a_link_of_ours_to_another_disk_is_used(
    tmp_path: Path,
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    logs.chmod(0o755)
    make_inner(logs)
    assert mode(logs) == 0o700

    disk = tmp_path / "disk"
    disk.mkdir()
    disk.chmod(0o755)
    (tmp_path / "linked").symlink_to(disk)
    make_inner(tmp_path / "linked")
    assert mode(disk) == 0o755
    disk.chmod(0o777)
    with pytest.raises(UnsafeDirError, match="others may write into"):
        make_inner(tmp_path / "linked")


@needs_root
def test_an_inner_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    os.chown(logs, NOBODY, NOBODY)

    with pytest.raises(UnsafeDirError, match="belongs to another user"):
        make_inner(logs)
