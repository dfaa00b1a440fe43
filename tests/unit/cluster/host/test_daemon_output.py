"""Output without a reader blocks nothing; dropped output is reported."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from disagg_cluster.host.daemon_output import QueuedOutput, QueuedStream
from support.children import wait_readable


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def fill(writer: int) -> int:
    """Write until nothing more fits; return how many bytes that were."""
    os.set_blocking(writer, False)
    total = 0
    for piece in (b"." * 4096, b"."):
        with contextlib.suppress(BlockingIOError):
            while True:
                total += os.write(writer, piece)
    os.set_blocking(writer, True)
    return total


def read(reader: int, count: int) -> bytes:
    found = b""
    while len(found) < count:
        assert wait_readable(reader)
        found += os.read(reader, count - len(found))
    return found


def test_output_arrives_completely_and_in_order(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stream = QueuedStream(writer)

    print("ä line", file=stream)
    click.echo("another", file=stream)
    stream.write("\ud800 is no text\n")

    wanted = "ä line\nanother\n\\ud800 is no text\n".encode()
    assert read(reader, len(wanted)) == wanted
    assert stream.drain(20)


def test_a_full_pipe_does_not_block_and_drops_are_reported(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    filled = fill(writer)
    stream = QueuedStream(writer, max_bytes=20)
    output = QueuedOutput([stream])

    for number in range(10):
        stream.write(f"line {number}\n")
    assert not stream.drain(0.01)
    assert not output.status().success

    read(reader, filled)
    shown = read(reader, len(b"line 0\nline 1\n"))
    assert shown == b"line 0\nline 1\n"
    note = read(reader, len(b"(output dropped here, as nothing read it: "))
    assert note == b"(output dropped here, as nothing read it: "
    assert stream.drain(20)
    assert output.status().success


def test_the_next_write_after_a_reader_is_gone_fails(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    stream = QueuedStream(writer)

    stream.write("nobody\n")
    assert not stream.drain(20)
    with pytest.raises(BrokenPipeError):
        stream.write("hears this\n")


def test_output_that_need_not_arrive_is_dropped_once_its_reader_is_gone(
    pipe: tuple[int, int],
) -> None:
    """Such as the daemon's standard error: its end must not be the daemon's."""
    reader, writer = pipe
    os.close(reader)
    stream = QueuedStream(writer, raises=False)
    output = QueuedOutput([stream])

    stream.write("nobody\n")
    assert not stream.drain(20)
    stream.write("hears this\n")

    assert (stream.dropped, stream.obstacle) == (2, "Broken pipe")
    assert not output.status().success


def test_output_goes_on_when_a_full_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_bytes = 10

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room_bytes
        if not room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = os_write(descriptor, data[:room_bytes])
        room_bytes -= taken
        return taken

    os_write = os.write
    monkeypatch.setattr(os, "write", write)
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        stream = QueuedStream(file.fileno())
        output = QueuedOutput([stream])
        for text in ("one\n", "two, cut off\n", "three\n"):
            stream.write(text)
            assert stream.drain(20)
        assert not output.status().success
        room_bytes = 1000
        stream.write("four\n")
        assert stream.drain(20)

    assert path.read_text().splitlines() == [
        "one",
        "two, c",
        "four",
        "(output dropped here, as No space left on device: 2 pieces)",
    ]
    assert output.status().success


def test_output_to_a_non_blocking_descriptor_is_complete(
    pipe: tuple[int, int],
) -> None:
    reader, writer = pipe
    filled = fill(writer)
    os.set_blocking(writer, False)
    stream = QueuedStream(writer)

    stream.write("late\n")
    assert not stream.drain(0.01)
    read(reader, filled)

    assert read(reader, 5) == b"late\n"


def test_without_a_thread_nothing_is_lost(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reader, writer = pipe
    stream = QueuedStream(writer)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        stream.write("first\n")
    stream.write("second\n")

    assert read(reader, 13) == b"first\nsecond\n"


def test_queued_output_does_not_keep_a_process_from_ending(pipe: tuple[int, int]) -> None:
    """Including its last words, its exit code, and the traceback of an uncaught error."""
    _reader, writer = pipe
    fill(writer)
    script = (
        "import sys, click\n"
        "from disagg_cluster.host import daemon_output\n"
        "daemon_output.CLOSING_SECONDS = 0.2\n"
        "with daemon_output.queued_output():\n"
        "    print('lines' * 1000)\n"
        "    click.echo('more', err=True)\n"
        "raise ValueError('nobody caught it')\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", script], stdout=writer, stderr=writer, timeout=30, check=False
    )

    assert ended.returncode == 1
