"""The files of a checkpoint: the last that was complete, or none."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from disagg_cluster.continuity import checkpoint_file
from disagg_cluster.continuity.checkpoint_file import CheckpointFile, StuckCheckpointError
from disagg_cluster.continuity.checkpoint_text import Checkpoint, CheckpointError, encode
from disagg_cluster.supervisor.journal.journal_text import Where
from disagg_exporter.model.checkpoints import LedgerCheckpoint

HERE = Where(boot_id="boot", pid_namespace="pids")
OURS = "4711 99"
LOG = logging.getLogger("checkpoints")


def file_in(folder: Path, where: Where = HERE) -> CheckpointFile:
    paths = folder / "accounting-0.json", folder / "accounting-1.json"
    return CheckpointFile(paths, where, LOG)


def content(taken_ns: int, names: int = 0) -> Checkpoint:
    return Checkpoint(
        LedgerCheckpoint(taken_ns), names={str(n): "name" for n in range(names)}, daemon=OURS
    )


def test_the_last_written_checkpoint_is_read(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    assert file.read(100, OURS) is None
    for taken_ns in range(1, 4):
        # A shorter one leaves nothing of the longer one before.
        file.write(content(taken_ns, names=4 - taken_ns))
        assert file_in(tmp_path).read(100, OURS) == content(taken_ns, names=4 - taken_ns)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_an_interrupted_write_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    for taken_ns in (1, 2, 3):
        file.write(content(taken_ns, names=10))
    torn = tmp_path / "accounting-1.json"
    torn.write_bytes(encode(HERE, content(4, names=20))[:200] + torn.read_bytes()[200:])

    assert file_in(tmp_path).read(100, OURS) == content(3, names=10)


def test_the_newest_checkpoint_is_used_if_the_lock_was_removed(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    for taken_ns in (1, 2):
        file.write(content(taken_ns))

    assert file_in(tmp_path).read(100, None) == content(2)


def test_an_untrusted_checkpoint_is_kept_aside_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file_in(tmp_path).write(content(1))

    assert file_in(tmp_path, Where(boot_id="next", pid_namespace="pids")).read(100, OURS) is None
    assert "counters begin at zero" in caplog.text
    assert "it is from before the last boot" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["accounting-0.json.rejected"]


def test_a_failed_write_removes_both_checkpoints(tmp_path: Path) -> None:
    """A successor that continued from it would show lower counters, but not begin at zero."""
    file = file_in(tmp_path)
    file.write(content(1))
    (tmp_path / "accounting-1.json").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(CheckpointError, match="counters begin at zero if the daemon dies now"):
        file.write(content(2))
    assert list(tmp_path.iterdir()) == []
    file.write(content(3))
    assert file_in(tmp_path).read(100, OURS) == content(3)


def test_an_unremovable_checkpoint_does_not_keep_the_other(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.write(content(1))
    file.write(content(2))
    stuck = tmp_path / "accounting-0.json"
    stuck.unlink()
    stuck.mkdir()

    with pytest.raises(CheckpointError, match=r"cannot remove the checkpoint .*accounting-0"):
        file.write(content(3))
    assert list(tmp_path.iterdir()) == [stuck]


@pytest.mark.parametrize("before", [1, 2])
def test_the_last_checkpoint_survives_the_next_daemons_first_write(
    tmp_path: Path, before: int
) -> None:
    file = file_in(tmp_path)
    for taken_ns in range(1, before + 1):
        file.write(content(taken_ns))
    following = file_in(tmp_path)
    following.read(100, OURS)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    following.write(content(9))
    [written] = [p for p in tmp_path.iterdir() if whole.get(p.name) != p.read_bytes()]
    written.write_bytes(written.read_bytes()[:-1])

    assert file_in(tmp_path).read(100, OURS) == content(before)


@pytest.mark.parametrize("since", ["4712 50", ""])
def test_a_checkpoint_older_than_the_last_daemon_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, since: str
) -> None:
    """That daemon knew no checkpoints: what it showed began at zero."""
    file = file_in(tmp_path)
    file.write(content(1))
    file.write(content(2))

    assert file_in(tmp_path).read(100, since) is None
    assert "another disagg-node has run here since" in caplog.text
    assert {path.suffix for path in tmp_path.iterdir()} == {".rejected"}


def test_the_last_daemons_checkpoint_is_preferred_to_an_earlier_daemons(tmp_path: Path) -> None:
    """It is newer, but its daemon was followed by another whose checkpoint counts."""
    file = file_in(tmp_path)
    file.write(content(5)._replace(daemon="4700 1"))
    file.write(content(3))

    assert file_in(tmp_path).read(100, OURS) == content(3)


def test_a_checkpoint_is_written_into_the_locked_folder(tmp_path: Path) -> None:
    aside, theirs = tmp_path / "aside", tmp_path / "theirs"
    aside.mkdir()
    theirs.mkdir()
    (tmp_path / "run").symlink_to(theirs)
    (theirs / "accounting-0.json").write_text("theirs")
    paths = tmp_path / "run" / "accounting-0.json", tmp_path / "run" / "accounting-1.json"
    file = CheckpointFile(paths, HERE, LOG, at=lambda path: aside / path.name)
    file.write(content(1))
    assert file_in(aside).read(100, OURS) == content(1)
    file.remove()

    assert list(aside.iterdir()) == []
    assert [path.read_text() for path in theirs.iterdir()] == ["theirs"]


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_checkpoint_that_cannot_be_written_or_removed_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake: the disk has turned read-only."""
    file = file_in(tmp_path)
    file.write(content(1))
    file.write(content(2))
    with monkeypatch.context() as disk:
        disk.setattr(checkpoint_file, "open_private", refuse)
        disk.setattr(Path, "unlink", refuse)
        for _ in range(2):
            with pytest.raises(StuckCheckpointError, match="no accounting is shown until"):
                file.write(content(3))

    assert file_in(tmp_path).read(100, OURS) == content(2)
    file.write(content(3))
    assert file_in(tmp_path).read(100, OURS) == content(3)


def test_the_last_stays_if_the_older_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_in(tmp_path)
    for taken_ns in (1, 2, 3):
        file.write(content(taken_ns))
    unlink = Path.unlink

    def stuck(path: Path, missing_ok: bool = False) -> None:
        refuse() if path.name == "accounting-1.json" else unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", stuck)
    with pytest.raises(StuckCheckpointError):
        file.remove()
    monkeypatch.undo()

    assert file_in(tmp_path).read(100, OURS) == content(3)
