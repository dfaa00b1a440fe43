"""Draining a publisher's subscription."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
import zmq

from disagg_exporter.steps.fpm.message import FpmMessage
from disagg_exporter.steps.fpm.subscriber import FpmSubscriber

HEARTBEAT = msgspec.msgpack.encode({"version": 1})


class EndlessSocket:
    """A socket on which a message always waits."""

    def recv_multipart(self, _flags: int) -> list[bytes]:
        return [b"", bytes(8), HEARTBEAT]


def test_draining_ends_although_the_publisher_never_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = 0

    def deliver(_number: int, _message: FpmMessage, _t_ns: int) -> None:
        nonlocal received
        received += 1
        assert received < 100_000, "it never ends"

    subscriber = FpmSubscriber("ipc:///nowhere", deliver)
    monkeypatch.setattr(subscriber, "_socket", cast("zmq.Socket[bytes]", EndlessSocket()))
    subscriber.drain()

    assert 10_000 <= received < 11_000
