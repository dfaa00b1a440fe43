"""What vanishes from the run folder is recreated, logged and counted."""

import logging
from pathlib import Path

import pytest

from disagg_cluster.host.run_dir.watch import RunDirWatch


class FakeFile:
    """A file that exists or not, and may be impossible to restore."""

    def __init__(self) -> None:
        self.is_in_place = True
        self.restorable = True

    def restore(self) -> None:
        if not self.restorable:
            raise OSError(28, "No space left on device")
        self.is_in_place = True


@pytest.fixture
def lock_file() -> FakeFile:
    return FakeFile()


@pytest.fixture
def looks() -> list[str]:
    return []


@pytest.fixture
def watch(tmp_path: Path, lock_file: FakeFile, looks: list[str]) -> RunDirWatch:
    (tmp_path / "logs").mkdir()
    log = logging.getLogger("test")
    each = (lambda: looks.append("looked"),)
    return RunDirWatch(tmp_path, (tmp_path / "logs",), (("lock", lock_file),), log, each)


def test_nothing_is_logged_or_counted_while_nothing_is_missing(
    watch: RunDirWatch, looks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    watch.check()

    assert (watch.restored, watch.status().success, looks) == (0, True, ["looked"])
    assert caplog.records == []


def test_a_missing_file_is_restored_once_logged_and_counted(
    watch: RunDirWatch, lock_file: FakeFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock_file.is_in_place = False
    (tmp_path / "logs").rmdir()
    watch.check()
    watch.check()

    assert lock_file.is_in_place
    assert (tmp_path / "logs").is_dir()
    assert (watch.restored, watch.status().success) == (1, True)
    assert [record.getMessage() for record in caplog.records] == [
        f"removed or replaced in {tmp_path} and now recreated: lock, logs; their contents, "
        "such as logs and rejected journals, are lost"
    ]


def test_a_failed_restoration_is_shown_and_retried(
    watch: RunDirWatch, lock_file: FakeFile, looks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    lock_file.is_in_place = lock_file.restorable = False
    for _ in range(3):
        watch.check()
    assert looks == ["looked"] * 3
    assert (watch.restored, watch.status().success) == (0, False)
    assert caplog.text.count("cannot be restored: No space left on device") == 1

    lock_file.restorable = True
    watch.check()
    assert (watch.restored, watch.status().success) == (1, True)
