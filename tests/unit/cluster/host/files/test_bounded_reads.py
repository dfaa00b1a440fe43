"""Files named by a person, whatever they turn out to be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disagg_cluster.host.files.named_paths import read_bounded


def test_a_file_is_read_through_a_link_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")

    assert read_bounded(tmp_path / "link", 5) == b"12345"


def test_a_larger_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123456")

    with pytest.raises(OSError, match="larger than 5 bytes"):
        read_bounded(tmp_path / "file", 5)


def test_devices_and_pipes_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (Path("/dev/zero"), tmp_path / "pipe"):
        with pytest.raises(OSError, match="it is no regular file"):
            read_bounded(path, 5)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_bounded(tmp_path, 5)
