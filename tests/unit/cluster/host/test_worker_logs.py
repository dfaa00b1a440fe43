"""A worker's log: opened even if the disk is full, rotated while its writer has it open."""

import asyncio
import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from disagg_cluster.host.worker_logs import (
    LogError,
    Rotation,
    copy_file,
    last_lines,
    open_log,
    recover_deleted,
    rotate,
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "w.log"


def full_disk(_path: str, _flags: int) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_on_a_full_disk_discards_output_and_reports_it(log: Path) -> None:
    opened, lost = open_log(log, full_disk)
    with opened:
        opened.write(b"into nothing")

    assert lost == f"cannot write the log {log}: No space left on device"
    assert not log.exists()


def test_a_log_that_may_not_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"cannot write the log .*: Is a directory"):
        open_log(tmp_path)


@pytest.mark.parametrize("planted", ["link", "hard link"])
def test_a_linked_log_is_refused_and_nothing_is_written(
    log: Path, tmp_path: Path, planted: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    log.parent.mkdir()
    log.symlink_to(victim) if planted == "link" else log.hardlink_to(victim)

    with pytest.raises(LogError, match=r"cannot write the log .*w\.log: it (is a symbolic|has a)"):
        open_log(log)
    assert victim.read_text() == "theirs"


def test_a_log_and_its_parts_are_private(log: Path) -> None:
    log.parent.mkdir(mode=0o755)
    log.touch(mode=0o644)
    with open_log(log)[0] as writer:
        writer.write(b"first")
        assert rotate(log, 1)

    assert log.parent.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in log.parent.iterdir()} == {0o600}


def test_a_rotation_cuts_no_file_that_a_link_leads_to(log: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("theirs, and long")
    log.parent.mkdir()
    log.write_text("long")
    log.with_name("w.log.1").symlink_to(victim)
    assert rotate(log, 1)
    assert (log.read_text(), victim.read_text()) == ("", "theirs, and long")

    log.unlink()
    log.symlink_to(victim)
    assert rotate(log, 1) is False
    assert last_lines(log, 5) == ()
    assert victim.read_text() == "theirs, and long"


def test_output_to_a_deleted_log_is_moved_to_its_path(log: Path) -> None:
    """The writer still has the deleted file open, which would fill the disk unnoticed."""
    script = "import sys\nfor word in sys.stdin: print(word.strip(), flush=True)"
    with (
        open_log(log)[0] as output,
        subprocess.Popen(
            [sys.executable, "-S", "-c", script], stdin=subprocess.PIPE, stdout=output, text=True
        ) as writer,
    ):
        assert writer.stdin is not None

        def says(word: str) -> None:
            assert writer.stdin is not None
            print(word, file=writer.stdin, flush=True)
            while Path(f"/proc/{writer.pid}/fd/1").stat().st_size == 0:
                os.sched_yield()

        says("before")
        assert recover_deleted(writer.pid, log) is False
        log.unlink()
        log.parent.rmdir()
        assert recover_deleted(writer.pid, log) is True
        assert log.read_text() == "before\n"
        assert recover_deleted(writer.pid, log) is False
        says("after")
        assert recover_deleted(writer.pid, log) is True
        assert log.read_text() == "before\nafter\n"
        assert Path(f"/proc/{writer.pid}/fd/1").stat().st_size == 0
        assert recover_deleted(writer.pid, log.with_name("other.log")) is False
        writer.stdin.close()
    assert recover_deleted(writer.pid, log) is False


def test_a_short_log_and_one_that_is_not_there_are_left_alone(log: Path) -> None:
    assert rotate(log, 10) is False
    log.parent.mkdir()
    log.write_bytes(b"0123456789")

    assert rotate(log, 10) is False
    assert log.read_bytes() == b"0123456789"


def test_a_long_log_is_cut_under_its_writer_and_two_older_parts_are_kept(log: Path) -> None:
    with open_log(log)[0] as writer:
        for text in (b"first", b"second", b"third", b"fourth"):
            writer.write(text)
            assert rotate(log, 1)
        writer.write(b"5")

    assert log.read_bytes() == b"5"
    assert {path.name: path.read_bytes() for path in log.parent.glob("*.log.*")} == {
        "w.log.1": b"fourth",
        "w.log.2": b"third",
    }


def test_a_full_disk_drops_the_oldest_log_part_first(log: Path) -> None:
    log.parent.mkdir()
    for name, text in (("w.log", b"now"), ("w.log.1", b"before"), ("w.log.2", b"long ago")):
        (log.parent / name).write_bytes(text)

    def copy(source: Path, target: Path) -> None:
        target.write_bytes(b"part of it")
        if log.with_name("w.log.2").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        copy_file(source, target)

    assert rotate(log, 1, copy)
    assert log.with_name("w.log.1").read_bytes() == b"now"
    assert not log.with_name("w.log.2").exists()


def test_a_rotation_without_disk_space_leaves_the_log_and_no_partial_copy(log: Path) -> None:
    log.parent.mkdir()
    log.write_bytes(b"now")

    def copy(_source: Path, target: Path) -> None:
        target.write_bytes(b"n")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LogError, match=r"cannot rotate the log .*: No space left on device"):
        rotate(log, 1, copy)
    assert [path.name for path in log.parent.iterdir()] == ["w.log"]
    assert log.read_bytes() == b"now"


def look(logs: dict[str, Path], until_cut: int) -> list[str]:
    """Run a rotation until so many logs were cut or it has made three checks."""
    cut: list[str] = []
    looks = 0

    def watched() -> dict[str, Path]:
        nonlocal looks
        looks += 1
        return logs

    async def run() -> None:
        rotation = Rotation(watched, cut.append, 1, logging.getLogger(), every_seconds=0.01)
        looking = asyncio.create_task(rotation.run())
        async with asyncio.timeout(20):
            while len(cut) < until_cut or looks < 3:
                await asyncio.sleep(0.01)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    asyncio.run(run())
    return cut


def test_logs_are_checked_repeatedly_and_truncations_reported(log: Path) -> None:
    log.parent.mkdir()
    log.write_bytes(b"x" * 1_000_001)
    short = log.with_name("v.log")
    short.write_bytes(b"x" * 1_000_000)

    assert look({"w": log, "v": short}, until_cut=1) == ["w"]
    assert log.stat().st_size == 0
    assert log.with_name("w.log.1").stat().st_size == 1_000_001


def test_a_failed_rotation_is_logged_once_and_others_continue(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.parent.mkdir()
    log.write_bytes(b"x" * 1_000_001)
    log.with_name("w.log.1").mkdir()
    other = log.with_name("v.log")
    other.write_bytes(b"x" * 1_000_001)
    log.with_name("w.log.2").write_text("")

    assert look({"w": log, "v": other}, until_cut=1) == ["v"]
    assert caplog.text.count("w: cannot rotate the log") == 1
