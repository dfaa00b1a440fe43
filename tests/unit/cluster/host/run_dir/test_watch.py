"""What vanishes from the run folder is recreated, logged and counted."""

import logging
from pathlib import Path

import pytest

from disagg_cluster.host.run_dir.watch import RunDirWatch


class Thing:
    """A file that exists or not, and may be impossible to restore."""

    def __init__(self) -> None:
        self.is_in_place = True
        self.restorable = True

    def restore(self) -> None:
        if not self.restorable:
            raise OSError(28, "No space left on device")
        self.is_in_place = True


@pytest.fixture
def thing() -> Thing:
    return Thing()


@pytest.fixture
def looks() -> list[str]:
    return []


@pytest.fixture
def watch(tmp_path: Path, thing: Thing, looks: list[str]) -> RunDirWatch:
    (tmp_path / "logs").mkdir()
    log = logging.getLogger("test")
    each = (lambda: looks.append("looked"),)
    return RunDirWatch(tmp_path, (tmp_path / "logs",), (("lock", thing),), log, each)


def test_nothing_is_logged_or_counted_while_nothing_is_missing(
    watch: RunDirWatch, looks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    watch.check()

    assert (watch.restored, watch.status().success, looks) == (0, True, ["looked"])
    assert caplog.records == []


def test_a_missing_file_is_restored_once_logged_and_counted(
    watch: RunDirWatch, thing: Thing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    thing.is_in_place = False
    (tmp_path / "logs").rmdir()
    watch.check()
    watch.check()

    assert thing.is_in_place
    assert (tmp_path / "logs").is_dir()
    assert (watch.restored, watch.status().success) == (1, True)
    assert [record.getMessage() for record in caplog.records] == [
        f"removed or replaced in {tmp_path} and now recreated: lock, logs; their contents, "
        "such as logs and rejected journals, are lost"
    ]


def test_a_failed_restoration_is_shown_and_retried(
    watch: RunDirWatch, thing: Thing, looks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    thing.is_in_place = thing.restorable = False
    for _ in range(3):
        watch.check()
    assert looks == ["looked"] * 3
    assert (watch.restored, watch.status().success) == (0, False)
    assert caplog.text.count("cannot be restored: No space left on device") == 1

    thing.restorable = True
    watch.check()
    assert (watch.restored, watch.status().success) == (1, True)
