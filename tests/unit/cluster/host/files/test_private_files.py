"""A file is opened only if no other user can have created it, and is private from then on."""

import os
from pathlib import Path

import pytest

from disagg_cluster.host.files.private_files import NotPrivateError, open_private
from support.children import descriptors

WRITE = os.O_WRONLY | os.O_CREAT
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def test_a_new_file_is_private_and_not_inherited(tmp_path: Path) -> None:
    descriptor = open_private(tmp_path / "file", WRITE)

    assert os.fstat(descriptor).st_mode & 0o777 == 0o600
    assert not os.get_inheritable(descriptor)
    assert os.get_blocking(descriptor)
    os.close(descriptor)


def test_a_file_of_ours_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("said")
    (tmp_path / "file").chmod(0o644)

    os.close(open_private(tmp_path / "file", WRITE))
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "file").read_text() == "said"


@pytest.mark.parametrize(
    ("kind", "why"),
    [("link", "symbolic link"), ("dangling", "symbolic link"), ("second name", "hard link")],
)
def test_links_are_refused_and_their_targets_unchanged(tmp_path: Path, kind: str, why: str) -> None:
    victim, file = tmp_path / "victim", tmp_path / "file"
    victim.write_text("theirs")
    victim.chmod(0o644)
    if kind == "second name":
        file.hardlink_to(victim)
    else:
        file.symlink_to(victim if kind == "link" else tmp_path / "nowhere")
    before = descriptors()

    with pytest.raises(NotPrivateError, match=why):
        open_private(file, WRITE)
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("theirs", 0o644)
    assert not (tmp_path / "nowhere").exists()
    assert descriptors() == before


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")

    with pytest.raises(OSError, match=r"No such device|it is no file"):
        open_private(tmp_path / "file", WRITE)
    with pytest.raises(NotPrivateError, match="it is no file"):
        open_private(tmp_path / "file", os.O_RDWR)


@needs_root
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.chown(tmp_path / "file", 65534, 65534)

    with pytest.raises(NotPrivateError, match="belongs to another user"):
        open_private(tmp_path / "file", WRITE)
