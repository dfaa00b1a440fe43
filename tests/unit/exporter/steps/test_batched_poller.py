"""The poller of the connections, with real sockets on a real loop."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import Callable

import pytest

from disagg_exporter.steps.batched_poller import MUCH_BYTES, BatchedPoller, shared_poller
from disagg_exporter.steps.listener import rest_a_little


def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


class ByteReader:
    """Hears one byte a turn."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.turns = 0
        self.received = b""

    def __call__(self) -> bool:
        self.turns += 1
        try:
            byte = self.link.recv(1)
        except BlockingIOError:
            return False
        self.received += byte
        return bool(byte)


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0)


def test_data_already_received_is_read_at_once_and_turn_by_turn() -> None:
    async def scenario() -> tuple[bytes, int]:
        ours, theirs = pair()
        poller, reader = BatchedPoller(asyncio.get_running_loop(), lambda: 10**9), ByteReader(ours)
        with ours, theirs:
            theirs.send(b"abc")
            poller.add(ours, reader)
            await asyncio.sleep(0)
            after_one = reader.turns
            await until(lambda: reader.turns == 4)
            poller.remove(ours)
        return reader.received, after_one

    assert asyncio.run(scenario()) == (b"abc", 1)


def test_only_connections_with_data_are_read_at_the_next_tick() -> None:
    async def scenario() -> tuple[bytes, int]:
        poller = BatchedPoller(asyncio.get_running_loop(), lambda: 0.01)
        (ours, theirs), (silent, other) = pair(), pair()
        reader, idle = ByteReader(ours), ByteReader(silent)
        with ours, theirs, silent, other:
            poller.add(ours, reader)
            poller.add(silent, idle)
            await until(lambda: reader.turns and idle.turns)
            theirs.send(b"x")
            await until(lambda: reader.received)
            theirs.send(b"y")
            await until(lambda: len(reader.received) == 2)
            poller.remove(ours)
            poller.remove(silent)
        return reader.received, idle.turns

    assert asyncio.run(scenario()) == (b"xy", 1)


def test_only_a_connection_about_to_overflow_is_read_before_the_tick() -> None:
    async def scenario() -> tuple[bytes, bytes]:
        poller = BatchedPoller(asyncio.get_running_loop(), lambda: 10**9)
        packets = socket.AF_UNIX, socket.SOCK_SEQPACKET
        (ours, theirs), (quiet, other) = socket.socketpair(*packets), socket.socketpair(*packets)
        reader, rests = ByteReader(ours), ByteReader(quiet)
        with ours, theirs, quiet, other:
            ours.setblocking(False)
            quiet.setblocking(False)
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MUCH_BYTES)
            poller.add(ours, reader)
            poller.add(quiet, rests)
            await until(lambda: reader.turns and rests.turns)
            other.send(b"z")
            for _ in range(16):
                theirs.send(bytes(MUCH_BYTES // 16))
            await until(lambda: len(reader.received) == 16)
            poller.remove(ours)
            poller.remove(quiet)
        return reader.received, rests.received

    assert asyncio.run(scenario()) == (bytes(16), b"")


def test_a_removed_connection_is_not_read_any_more() -> None:
    async def scenario() -> tuple[int, bytes]:
        poller = BatchedPoller(asyncio.get_running_loop(), lambda: 0.01)
        (ours, theirs), (kept, other) = pair(), pair()
        reader, stays = ByteReader(ours), ByteReader(kept)
        with ours, theirs, kept, other:
            poller.add(ours, reader)
            poller.add(kept, stays)
            poller.remove(ours)
            poller.remove(ours)
            theirs.send(b"x")
            other.send(b"z")
            await until(lambda: stays.received)
            poller.remove(kept)
            # And one that is added after all were removed.
            poller.add(ours, reader)
            poller.remove(ours)
        return reader.turns, stays.received

    assert asyncio.run(scenario()) == (0, b"z")


def test_pollers_are_shared_by_loop_and_rest_function() -> None:
    async def scenario() -> tuple[bool, bool]:
        loop = asyncio.get_running_loop()
        poller = shared_poller(loop, rest_a_little)
        alike, other = shared_poller(loop, rest_a_little), shared_poller(loop, lambda: 0.5)
        return alike is poller, other is poller

    assert asyncio.run(scenario()) == (True, False)


def test_the_interval_is_asked_for_at_each_poll() -> None:
    rests = iter([2.0, 0.25])

    async def scenario() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        poller = BatchedPoller(loop, lambda: next(rests))
        return poller.next_seconds() % 2.0, poller.next_seconds() - loop.time()

    whole, soon = asyncio.run(scenario())

    assert whole == 0
    assert 0 <= soon <= 0.25


def test_a_connection_that_always_has_data_gets_one_turn_per_iteration() -> None:
    async def scenario() -> int:
        ours, theirs = pair()
        poller, turns = BatchedPoller(asyncio.get_running_loop(), lambda: 0.001), 0

        def hear() -> bool:
            nonlocal turns
            turns += 1
            return True

        with ours, theirs:
            theirs.send(b"x")
            poller.add(ours, hear)
            await asyncio.sleep(0.02)  # some beats
            before = turns
            for _ in range(10):
                await asyncio.sleep(0)
            poller.remove(ours)
        return turns - before

    assert asyncio.run(scenario()) <= 11


def test_a_failing_reader_does_not_stop_the_others() -> None:
    async def scenario() -> bytes:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, _context: None)
        poller = BatchedPoller(loop, lambda: 0.001)
        (ours, theirs), (kept, other) = pair(), pair()
        reader = ByteReader(kept)

        def fail() -> bool:
            raise RuntimeError

        with ours, theirs, kept, other:
            theirs.send(b"x")
            poller.add(ours, fail)
            poller.add(kept, reader)
            await asyncio.sleep(0)
            other.send(b"y")
            await until(lambda: reader.received)
            poller.remove(ours)
            poller.remove(kept)
        return reader.received

    assert asyncio.run(scenario()) == b"y"


def test_a_connection_refused_for_lack_of_descriptors_can_be_added_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> bytes:
        poller = BatchedPoller(asyncio.get_running_loop(), lambda: 0.001)
        ours, theirs = pair()
        reader = ByteReader(ours)
        with ours, theirs:
            with monkeypatch.context() as patch:
                patch.setattr(select, "epoll", none_left)
                with pytest.raises(OSError, match="Too many"):
                    poller.add(ours, reader)
            poller.add(ours, reader)
            theirs.send(b"z")
            await until(lambda: reader.received)
            poller.remove(ours)
        return reader.received

    assert asyncio.run(scenario()) == b"z"
