"""The daemon's end of the step records, over real sockets and a real loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import socket
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from disagg_exporter.errors import DisaggError
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.sender import Facts, Sender
from disagg_exporter.steps.listener import (
    MESSAGES_PER_TURN,
    STREAMS_PER_CONNECTION,
    TURNS_PER_DRAIN,
    ListenerCounts,
    StepsListener,
)
from disagg_exporter.steps.local_sockets import StepsSocketError, identity_of, unlink_if_same
from disagg_exporter.steps.messages import ControlMessage, MessageKind, StepEvent
from support.received_messages import one_by_one

HELLO, STEP, HEARTBEAT, DISCONNECTED = MessageKind
DECODE_STEP = Facts(elapsed_ns=20, generation_requests=7, generation_tokens=7, running=7)


class RecordingListener:
    """A listener on the running loop and the messages it delivered."""

    def __init__(self, path: Path, believes: Callable[[int], bool], rest_seconds: float) -> None:
        self.received: asyncio.Queue[ControlMessage] = asyncio.Queue()
        self.listener = StepsListener(
            path,
            "decode-0",
            believes,
            self.receive,
            clock_ns=lambda: 77,
            rest_seconds=lambda: rest_seconds,
        )

    def receive(self, event: StepEvent) -> None:
        for message in one_by_one(event):
            self.received.put_nowait(message)

    async def next(self) -> ControlMessage:
        async with asyncio.timeout(20):
            return await self.received.get()


@contextlib.asynccontextmanager
async def listening(
    path: Path, believes: Callable[[int], bool] = bool, *, rest_seconds: float = 0.001
) -> AsyncIterator[RecordingListener]:
    recording = RecordingListener(path, believes, rest_seconds)
    recording.listener.open(asyncio.get_running_loop())
    try:
        yield recording
    finally:
        recording.listener.close()


@contextlib.contextmanager
def connection(path: Path):  # type: ignore[no-untyped-def] # its type is socket's own
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.setblocking(False)
        link.connect(str(path))
        yield link


async def hung_up(link: socket.socket) -> None:
    """Wait until the other end has closed the connection."""
    async with asyncio.timeout(20):
        assert await asyncio.get_running_loop().sock_recv(link, 1) == b""


def test_a_stream_is_received_from_hello_to_disconnect(tmp_path: Path) -> None:
    async def scenario() -> list[ControlMessage]:
        async with listening(tmp_path / "s") as recording:
            sender = Sender(str(tmp_path / "s"), engine_index=1, flags=wire.OVERLAPPED)
            sender.beat()
            sender.step(DECODE_STEP, t_ns=1000)
            sender.beat()
            sender.close()
            return [await recording.next() for _ in range(4)]

    hello, step, heartbeat, gone = asyncio.run(scenario())

    assert [m.kind for m in (hello, step, heartbeat, gone)] == [
        HELLO,
        STEP,
        HEARTBEAT,
        DISCONNECTED,
    ]
    assert {m.key for m in (hello, step, heartbeat, gone)} == {step.key}
    assert (step.key.engine, step.key.pid, step.key.engine_index) == ("decode-0", os.getpid(), 1)
    assert {m.flags for m in (hello, step, heartbeat, gone)} == {wire.OVERLAPPED | wire.HELD_TOTALS}
    assert hello.step is not None
    assert hello.step.sequence == 0
    assert step.step is not None
    assert (step.t_ns, step.step.sequence, step.step.totals.decode_tokens) == (1000, 1, 7)
    assert heartbeat.step is not None
    assert (heartbeat.step.sequence, heartbeat.step.running, heartbeat.step.elapsed_ns) == (1, 7, 0)
    assert (gone.step, gone.t_ns) == (None, 77)


def test_the_pid_is_taken_from_the_kernel_and_not_from_the_record(tmp_path: Path) -> None:
    async def scenario() -> ControlMessage:
        async with listening(tmp_path / "s") as recording:
            liar = Sender(str(tmp_path / "s"), getpid=lambda: 4_000_000)
            liar.beat()
            hello = await recording.next()
            liar.close()
            return hello

    assert asyncio.run(scenario()).key.pid == os.getpid()


def test_an_untrusted_process_is_disconnected(tmp_path: Path) -> None:
    asked: list[int] = []

    async def scenario() -> ListenerCounts:
        async with listening(tmp_path / "s", lambda pid: bool(asked.append(pid))) as recording:
            with connection(tmp_path / "s") as link:
                await hung_up(link)
            assert recording.received.empty()
            return recording.listener.counts

    assert asyncio.run(scenario()) == ListenerCounts(0, 0, refused=1, bad_messages=0)
    assert asked == [os.getpid()]


def test_invalid_messages_are_counted_and_the_others_received(tmp_path: Path) -> None:
    async def scenario() -> tuple[ControlMessage, ListenerCounts]:
        record = wire.encode(
            wire.Record(wire.VERSION, wire.HEARTBEAT, 0, 1, 0, 0, 5, *[0] * 14, 0.0, *[0] * 12)
        )
        async with listening(tmp_path / "s") as recording:
            with connection(tmp_path / "s") as link:
                link.send(b"?")
                link.send(record[:1] + b"\x09" + record[2:])
                link.send(record + bytes(wire.MAX_RECORD_BYTES))
                link.send(wire.encode(a_record()._replace(kv_usage_ratio=math.nan)))
                link.send(record + b"from the future")
                return await recording.next(), recording.listener.counts

    received, counts = asyncio.run(scenario())

    assert (received.kind, received.key.incarnation) == (HEARTBEAT, 5)
    assert counts == ListenerCounts(connected=1, accepted=1, refused=0, bad_messages=4)


def test_streams_beyond_the_limit_of_a_connection_are_bad_messages(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def scenario() -> tuple[int, ListenerCounts]:
        async with listening(path) as recording:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
                link.connect(str(path))
                for incarnation in range(100):
                    link.send(wire.encode(a_record()._replace(incarnation=incarnation)))
                received = {(await recording.next()).key for _ in range(STREAMS_PER_CONNECTION)}
                while recording.listener.counts.bad_messages < 100 - STREAMS_PER_CONNECTION:
                    await asyncio.sleep(0)
                return len(received), recording.listener.counts

    streams, counts = asyncio.run(scenario())

    assert streams == STREAMS_PER_CONNECTION
    assert counts.connected == 1


def test_a_packet_is_received_up_to_its_first_invalid_record(tmp_path: Path) -> None:
    good = [packed(sequence=sequence, record_bytes=wire.BYTES) for sequence in (1, 2, 3)]
    bad = packed(kind=9, record_bytes=wire.BYTES)

    async def scenario() -> tuple[list[int], ListenerCounts]:
        async with listening(tmp_path / "s") as recording:
            with connection(tmp_path / "s") as link:
                link.send(b"".join(good))
                link.send(good[0] + bad + good[1])
                link.send(good[2] + good[0][:50])
                link.send(bytes(wire.MAX_PACKET_BYTES + 1))
                link.send(packed(sequence=4))
                received = [await recording.next() for _ in range(6)]
                return [message.step.sequence for message in received if message.step], (
                    recording.listener.counts
                )

    received, counts = asyncio.run(scenario())

    assert received == [1, 2, 3, 1, 3, 4]
    assert counts.bad_messages == 3


def test_the_rate_limit_counts_records_and_not_packets(tmp_path: Path) -> None:
    """Large packets give a sender no larger allowance."""
    packet = packed(record_bytes=wire.BYTES) * 100

    async def scenario() -> int:
        received: list[ControlMessage] = []
        listener = StepsListener(
            *(tmp_path / "s", "decode-0", bool, lambda event: received.extend(one_by_one(event))),
            clock_ns=lambda: 0,
            messages_per_second=101,
        )
        listener.open(asyncio.get_running_loop())
        with connection(tmp_path / "s") as link:
            for _ in range(3):
                link.send(packet)
            listener.drain()
            listener.drain()
        listener.close()
        return len(received)

    assert asyncio.run(scenario()) == 100


def packed(**fields: int) -> bytes:
    return wire.encode(a_record()._replace(**fields))


def a_record() -> wire.Record:
    return wire.Record._make([wire.VERSION, wire.STEP, *[0] * (len(wire.Record._fields) - 2)])


def test_two_streams_at_once_are_kept_apart(tmp_path: Path) -> None:
    async def scenario() -> tuple[list[ControlMessage], ListenerCounts]:
        async with listening(tmp_path / "s") as recording:
            senders = [Sender(str(tmp_path / "s"), engine_index=rank) for rank in (0, 1)]
            for sender in senders:
                sender.beat()
            received = [await recording.next() for _ in senders]
            counts = recording.listener.counts
            for sender in senders:
                sender.close()
            return received, counts

    received, counts = asyncio.run(scenario())

    assert {message.key.engine_index for message in received} == {0, 1}
    assert counts.connected == 2


def test_a_stream_that_has_reconnected_is_not_reported_as_disconnected(tmp_path: Path) -> None:
    """A plugin opens its new connection before it closes the old one."""
    hello = wire.encode(
        wire.Record(wire.VERSION, wire.HELLO, 0, 1, 0, 0, 5, *[0] * 14, 0.0, *[0] * 12)
    )

    async def scenario() -> list[ControlMessage]:
        async with listening(tmp_path / "s") as recording:
            with connection(tmp_path / "s") as new:
                with connection(tmp_path / "s") as old:
                    old.send(hello)
                    received = [await recording.next()]
                    new.send(hello)
                    received.append(await recording.next())
                new.send(hello)
                received.append(await recording.next())
            received.append(await recording.next())
            return received

    kinds = [message.kind for message in asyncio.run(scenario())]

    assert kinds == [HELLO, HELLO, HELLO, DISCONNECTED]


def test_a_flood_does_not_starve_the_event_loop(tmp_path: Path) -> None:
    """After one turn of a connection, and its last packet, other callbacks of the loop run."""

    async def scenario() -> int:
        async with listening(tmp_path / "s") as recording:
            sender = Sender(str(tmp_path / "s"))
            sender.beat()
            await recording.next()
            while sender.drops == 0:
                sender.step(DECODE_STEP, t_ns=1)
            sent = sender.drops
            while recording.received.empty():
                await asyncio.sleep(0)
            first_turn = recording.received.qsize()
            sender.close()
            assert sent
            return first_turn

    assert asyncio.run(scenario()) <= MESSAGES_PER_TURN + wire.MAX_PACKET_BYTES // wire.BYTES


def test_draining_receives_all_that_has_arrived_and_the_disconnect(tmp_path: Path) -> None:
    """An engine that dies leaves its last steps in the socket: they count."""

    async def scenario() -> list[ControlMessage]:
        async with listening(tmp_path / "s") as recording:
            sender = Sender(str(tmp_path / "s"))
            sender.beat()
            for t_ns in range(400):
                sender.step(DECODE_STEP, t_ns)
            assert sender.drops == 0
            sender.close()
            recording.listener.drain()
            recording.listener.drain()
            return [recording.received.get_nowait() for _ in range(recording.received.qsize())]

    received = asyncio.run(scenario())

    assert [message.kind for message in received] == [HELLO, *[STEP] * 400, DISCONNECTED]


def test_draining_ends_although_the_sender_never_stops(tmp_path: Path) -> None:
    async def scenario() -> int:
        record = a_record()._replace(record_bytes=wire.BYTES)
        packet, received = wire.encode(record) * MESSAGES_PER_TURN, 0

        def send_more(_event: StepEvent) -> None:
            nonlocal received
            received += 1
            assert received < 1000, "it never ends"
            link.send(packet)

        listener = StepsListener(tmp_path / "s.sock", "e", bool, send_more)
        listener.open(asyncio.get_running_loop())
        with connection(tmp_path / "s.sock") as link:
            link.send(packet)
            listener.drain()
            listener.close()
        return received

    assert asyncio.run(scenario()) == TURNS_PER_DRAIN


def test_an_emptied_connection_is_not_read_before_the_next_tick(tmp_path: Path) -> None:
    """Waking up for each step of a fast engine would cost both ends more than it is worth."""

    async def scenario() -> tuple[int, list[MessageKind]]:
        async with listening(tmp_path / "s", rest_seconds=10**9) as recording:
            sender = Sender(str(tmp_path / "s"))
            sender.beat()
            await recording.next()
            sender.step(DECODE_STEP, t_ns=1)
            for _ in range(10):
                await asyncio.sleep(0)
            at_rest = recording.received.qsize()
            recording.listener.drain()
            sender.close()
            return at_rest, [
                recording.received.get_nowait().kind for _ in range(recording.received.qsize())
            ]

    at_rest, drained = asyncio.run(scenario())

    assert at_rest == 0
    assert drained == [STEP]


def test_all_connections_are_read_on_a_common_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever each was emptied, it is polled again together with all others."""

    async def scenario() -> list[float]:
        loop, beats = asyncio.get_running_loop(), []
        call_at = loop.call_at

        def watched(when: float, *rest: Any, **more: Any) -> Any:
            beats.append(when)
            return call_at(when, *rest, **more)

        async with listening(tmp_path / "s", rest_seconds=0.25) as recording:
            for _ in range(2):
                sender = Sender(str(tmp_path / "s"))
                sender.beat()
                await recording.received.get()
                monkeypatch.setattr(loop, "call_at", watched)
                sender.step(DECODE_STEP, t_ns=1)
                await recording.received.get()
                monkeypatch.undo()
                sender.close()
        return beats

    beats = asyncio.run(scenario())

    assert beats
    assert all((beat / 0.25).is_integer() for beat in beats)


def test_a_daemon_out_of_descriptors_accepts_once_one_is_free(tmp_path: Path) -> None:
    async def scenario() -> tuple[int, ControlMessage]:
        async with listening(tmp_path / "s") as recording:
            sender = Sender(str(tmp_path / "s"))
            sender.beat()
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            next_free = os.dup(0)
            os.close(next_free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
            try:
                for _ in range(10):
                    await asyncio.sleep(0)
                accepted = recording.listener.counts.accepted
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            hello = await recording.next()
            sender.close()
            return accepted, hello

    accepted, hello = asyncio.run(scenario())

    assert accepted == 0
    assert hello.kind is HELLO


def test_the_socket_is_private_to_its_owner_and_removed_on_close(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def scenario() -> int:
        async with listening(path):
            return stat.S_IMODE(path.stat().st_mode)

    assert asyncio.run(scenario()) == 0o600
    assert not path.exists()


def test_the_socket_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
        dead.listen()

    async def scenario() -> ControlMessage:
        async with listening(path) as recording:
            sender = Sender(str(path))
            sender.beat()
            hello = await recording.next()
            sender.close()
            return hello

    assert asyncio.run(scenario()).kind is HELLO


def test_the_socket_of_a_living_daemon_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as living:
        living.bind(str(path))
        living.listen()

        with pytest.raises(StepsSocketError, match="another daemon listens there"):
            asyncio.run(open_and_close(path))

    assert path.is_socket()


def test_closing_a_first_daemon_leaves_the_socket_of_a_second(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def scenario() -> ControlMessage:
        async with listening(path) as first:
            path.unlink()
            async with listening(path) as second:
                first.listener.close()
                sender = Sender(str(path))
                sender.beat()
                hello = await second.next()
                sender.close()
                return hello

    assert asyncio.run(scenario()).kind is HELLO


@pytest.mark.parametrize("folder_too", [False, True])
def test_a_removed_socket_is_restored_without_disconnecting_senders(
    tmp_path: Path, folder_too: bool
) -> None:
    path = tmp_path / "run" / "s"
    path.parent.mkdir()

    async def scenario() -> list[MessageKind]:
        async with listening(path) as recording:
            before = Sender(str(path))
            before.beat()
            kinds = [(await recording.next()).kind]
            assert recording.listener.is_in_place
            path.unlink()
            if folder_too:
                path.parent.rmdir()
                with pytest.raises(StepsSocketError):
                    recording.listener.restore()
                path.parent.mkdir()
            assert not recording.listener.is_in_place

            recording.listener.restore()
            assert recording.listener.is_in_place
            before.step(DECODE_STEP, t_ns=1000)
            before.beat()
            kinds += [(await recording.next()).kind for _ in range(2)]
            after = Sender(str(path))
            after.beat()
            kinds.append((await recording.next()).kind)
            before.close()
            after.close()
            return kinds

    assert asyncio.run(scenario()) == [HELLO, STEP, HEARTBEAT, HELLO]


def test_a_socket_is_not_restored_over_that_of_another_daemon(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def scenario() -> None:
        async with listening(path) as first:
            path.unlink()
            async with listening(path):
                with pytest.raises(StepsSocketError, match="another daemon listens there"):
                    first.listener.restore()
                assert not first.listener.is_in_place

    asyncio.run(scenario())


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")

    with pytest.raises(StepsSocketError, match="no socket"):
        asyncio.run(open_and_close(path))

    assert path.read_text() == "precious"


def test_a_path_too_long_for_a_socket_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / ("x" * (108 - len(str(tmp_path)) - 1))

    with pytest.raises(DisaggError, match="choose a shorter run directory"):
        asyncio.run(open_and_close(path))


def test_a_path_of_107_bytes_is_not_too_long(tmp_path: Path) -> None:
    path = tmp_path / ("x" * (107 - len(str(tmp_path)) - 1))

    asyncio.run(open_and_close(path))


def test_a_missing_directory_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StepsSocketError, match="No such file or directory"):
        asyncio.run(open_and_close(tmp_path / "gone" / "s"))


async def open_and_close(path: Path) -> None:
    async with listening(path):
        pass


def test_a_listener_can_be_closed_twice_or_unopened(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with listening(tmp_path / "s") as recording:
            recording.listener.close()
            (tmp_path / "s").write_text("the successor's")

    asyncio.run(scenario())
    unopened = StepsListener(tmp_path / "t", "decode-0", bool, print)
    unopened.drain()
    unopened.close()

    assert (tmp_path / "s").read_text() == "the successor's"


def test_only_a_file_with_our_identity_is_unlinked(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    ours = identity_of(file)
    (tmp_path / "next").touch()
    (tmp_path / "next").replace(file)

    unlink_if_same(file, ours)
    assert file.exists()
    unlink_if_same(file, identity_of(file))
    assert not file.exists()
    unlink_if_same(file, ours)
    unlink_if_same(file, None)
    assert identity_of(file) is None
