"""Receives an engine's ForwardPassMetrics: a ZMQ subscription in the daemon's loop."""

from __future__ import annotations

import time
from asyncio import AbstractEventLoop
from collections.abc import Callable

import zmq

from disagg_exporter.errors import DisaggError
from disagg_exporter.steps.fpm.message import MAX_BODY_BYTES, FpmError, FpmMessage, decode

# So that an engine that floods the daemon cannot block its other work.
MESSAGES_PER_TURN = 256

# Pause after a socket has been read empty: an engine with a hundred steps a second then wakes the
# daemon twenty times.
_REST_SECONDS = 0.05

# Beyond this many queued messages the oldest are lost, and counted by the gap in numbers.
_MOST_WAITING = 10_000

Deliver = Callable[[int, FpmMessage, int], None]
"""Receives a message's number, the message, and its time of arrival."""


class FpmSocketError(DisaggError):
    """An address that ZMQ cannot subscribe to; the text gives it and the cause."""


class FpmSubscriber:
    """Receives one publisher's messages from `open` to `close`.

    The caller must know that it is the engine's own: ZMQ does not identify the publisher.

    Args:
        address: `tcp://127.0.0.1:PORT` or `ipc://PATH`.
        deliver: Called on the loop's thread for each message, in order.
        clock_ns: CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        address: str,
        deliver: Deliver,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.bad_messages = 0
        self._address = address
        self._deliver = deliver
        self._clock_ns = clock_ns
        self._loop: AbstractEventLoop | None = None
        self._socket: zmq.Socket[bytes] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is subscribed."""
        return self._socket is not None

    def open(self, loop: AbstractEventLoop) -> None:
        """Subscribe; the publisher may start later. Raises `FpmSocketError`."""
        # One context per process, as ZMQ recommends: each context has two threads.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        listening = context.socket(zmq.SUB)
        listening.setsockopt(zmq.LINGER, 0)
        listening.setsockopt(zmq.RCVHWM, _MOST_WAITING)
        listening.setsockopt(zmq.MAXMSGSIZE, MAX_BODY_BYTES)
        listening.setsockopt(zmq.SUBSCRIBE, b"")
        try:
            listening.connect(self._address)
        except zmq.ZMQError as error:
            listening.close()
            raise FpmSocketError(f"{self._address!a}: {error.strerror}") from None
        self._socket, self._loop = listening, loop
        loop.call_soon(self._take_turn, listening, loop)

    def close(self) -> None:
        """Close the subscription. Delivers nothing."""
        if self._socket is None or self._loop is None:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._socket = None

    def drain(self) -> None:
        """Read all that has arrived at once; of a publisher that never stops, a full queue."""
        if self._socket is not None:
            for _ in range(0, _MOST_WAITING, MESSAGES_PER_TURN):
                if self._read_turn(self._socket) < MESSAGES_PER_TURN:
                    break

    def _take_turn(self, listening: zmq.Socket[bytes], loop: AbstractEventLoop) -> None:
        """Read one turn; schedule the next at once, after a pause, or on arrival."""
        if self._socket is not listening:
            return
        try:
            received = self._read_turn(listening)
        except Exception:
            # An error with one message must not block those after it.
            loop.call_later(_REST_SECONDS, self._take_turn, listening, loop)
            raise
        if received == MESSAGES_PER_TURN:
            loop.call_soon(self._take_turn, listening, loop)
        elif received:
            loop.call_later(_REST_SECONDS, self._take_turn, listening, loop)
        else:
            # ZMQ's descriptor signals an arrival only once, and only after everything was read.
            loop.add_reader(listening.fileno(), self._wake, listening, loop)

    def _wake(self, listening: zmq.Socket[bytes], loop: AbstractEventLoop) -> None:
        loop.remove_reader(listening.fileno())
        self._take_turn(listening, loop)

    def _read_turn(self, listening: zmq.Socket[bytes]) -> int:
        for received in range(MESSAGES_PER_TURN):
            try:
                frames = listening.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return received
            self._receive(frames)
        return MESSAGES_PER_TURN

    def _receive(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or frames[0] or len(frames[1]) != 8:
            self.bad_messages += 1
            return
        try:
            message = decode(frames[2])
        except FpmError:
            self.bad_messages += 1
            return
        self._deliver(int.from_bytes(frames[1], "big"), message, self._clock_ns())
