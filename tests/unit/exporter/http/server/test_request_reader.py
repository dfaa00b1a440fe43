"""What is kept of a client that sends."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_exporter.http.deadline_socket import DeadlineSocket
from disagg_exporter.http.server.request import MAX_HEAD_BYTES, HeadError, RequestReader

GET = b"GET /%d HTTP/1.1\r\n\r\n"


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, DeadlineSocket]]:
    """A client and the server's end of its connection."""
    ours, theirs = socket.socketpair()
    with ours, DeadlineSocket(fileno=theirs.detach()) as served:
        served.limit(10.0)
        yield ours, served


def test_requests_that_come_together_are_read_one_by_one() -> None:
    with connected() as (client, served):
        client.sendall(GET % 1 + GET % 2 + b"GET")
        client.shutdown(socket.SHUT_WR)
        reader = RequestReader(served)

        heads = [reader.read_head(), reader.read_head()]
        assert [head and head.target for head in heads] == ["/1", "/2"]
        assert reader.read_head() is None
        assert reader.is_amid_head


def test_receive_does_not_block_when_waits_is_off() -> None:
    with connected() as (_, served):
        served.limit(float("inf"))
        with pytest.raises(BlockingIOError):
            RequestReader(served).receive(waits=False)


@settings(max_examples=20)
@given(st.binary(min_size=1, max_size=64).filter(lambda data: b"\r\n" not in data))
def test_no_more_than_the_maximum_head_is_received_of_endless_bytes(pattern: bytes) -> None:
    """What is beyond it stays with the kernel, and so with the client."""
    sent = pattern * (4 * MAX_HEAD_BYTES // len(pattern))
    with connected() as (client, served):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        with pytest.raises(HeadError):
            RequestReader(served).read_head()
        left = 0
        while part := served.recv(65536):
            left += len(part)

    assert left >= len(sent) - MAX_HEAD_BYTES


def test_a_body_is_discarded_as_it_arrives() -> None:
    with connected() as (client, served):
        client.sendall(b"x" * 1000)
        client.shutdown(socket.SHUT_WR)
        reader = RequestReader(served)

        assert reader.discard() == 1000
        assert reader.discard() == 0
        assert not reader.is_amid_head
