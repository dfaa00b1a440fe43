from __future__ import annotations

from pathlib import Path

import pytest

from disagg_cluster.host.files.atomic_write import check_replaceable, write_whole


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")

    with file.open() as reader:
        write_whole(file, b"after", 0o600)
        assert reader.read() == "before", "who reads already reads what was there"

    assert file.read_text() == "after"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_where_the_unfinished_file_goes_is_not_followed(tmp_path: Path) -> None:
    target, file = tmp_path / "target", tmp_path / "file"
    target.write_text("theirs")
    (tmp_path / ".file.part").symlink_to(target)

    with pytest.raises(OSError, match="symbolic links"):
        write_whole(file, b"ours")

    assert target.read_text() == "theirs"
    assert not file.exists()


def test_a_second_name_where_the_unfinished_file_goes_is_not_written_to(tmp_path: Path) -> None:
    target, file = tmp_path / "target", tmp_path / "file"
    target.write_text("theirs")
    (tmp_path / ".file.part").hardlink_to(target)

    write_whole(file, b"ours")
    assert (target.read_text(), file.read_text()) == ("theirs", "ours")


def test_checking_writability_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("theirs")

    check_replaceable(file)
    check_replaceable(tmp_path / "new")

    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "theirs"
    with pytest.raises(NotADirectoryError):
        check_replaceable(file / "below")
