"""Publishes ForwardPassMetrics as Dynamo and SGLang do: three frames over a ZMQ PUB socket.

It is an XPUB socket, a PUB socket that also reports subscriptions.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import msgspec
import zmq

STEP = {
    "version": 1,
    "worker_id": "w",
    "wall_time": 0.01,
    "scheduled_requests": {"num_decode_requests": 4, "sum_decode_kv_tokens": 400},
}
IDLE = {"version": 1, "worker_id": "w"}


class Publisher:
    """A bound publisher; `send` numbers the messages itself unless given a number."""

    def __init__(self, address: str = "tcp://127.0.0.1") -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        # Report a second subscriber, too, while the first has not left yet.
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        if address.startswith("ipc:"):
            self._socket.bind(address)
            self.address = address
        else:
            self.address = f"{address}:{self._socket.bind_to_random_port(address)}"
        self._next = 0

    def send(self, body: object, number: int | None = None) -> None:
        """Publish a message."""
        number = self._next if number is None else number
        self._next = number + 1
        self.send_frames(b"", number.to_bytes(8, "big"), msgspec.msgpack.encode(body))

    def send_frames(self, *frames: bytes) -> None:
        """Publish arbitrary frames."""
        self._socket.send_multipart(frames)

    def wait_for_subscriber(self) -> None:
        """Wait for a subscriber: earlier messages reach nobody."""
        said = b""
        while said != b"\x01":
            assert self._socket.poll(20_000)
            said = self._socket.recv()

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _what: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        self.close()
