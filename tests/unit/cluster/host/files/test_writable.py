"""A file that cannot be written is named with the reason, before minutes are spent on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from disagg_cluster.host.files.writable import CannotWriteError, check_writable, writing


def test_a_check_changes_no_file_and_leaves_none(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept.md", tmp_path / "new.md"
    kept.write_text("kept")

    check_writable(kept)
    check_writable(new)

    assert kept.read_text() == "kept"
    assert not new.exists()


def test_a_file_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CannotWriteError, match=r"cannot write .*nowhere/a\.md: No such file"):
        check_writable(tmp_path / "nowhere" / "a.md")


def test_an_error_of_another_library_without_an_errno_gives_its_text() -> None:
    with (
        pytest.raises(CannotWriteError, match=r"cannot write a\.png: encoder error -2"),
        writing(Path("a.png")),
    ):
        raise OSError("encoder error -2")
