"""The calls that a client begins, counted in what it sends."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.control.remote.call_count import CallCount

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6


def frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, 0)) + stream.to_bytes(4) + payload


def counted(sent: bytes, cuts: list[int]) -> int:
    count = CallCount()
    places = [0, *sorted(cut % (len(sent) + 1) for cut in cuts), len(sent)]
    for begin, end in itertools.pairwise(places):
        count.feed(sent[begin:end])
    return count.begun


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), max_size=6),
    st.lists(st.integers(0, 10_000), max_size=8),
)
def test_each_stream_counts_as_one_call_however_the_data_is_split(
    calls: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    """Trailers, data and connection frames count as no call."""
    sent = PREFACE + frame(SETTINGS, 0)
    for number, (headers, data) in enumerate(calls):
        stream = 2 * number + 1
        sent += frame(HEADERS, stream, headers) + frame(DATA, stream, data) + frame(PING, 0, b"8")
        sent += frame(HEADERS, stream, b"trailers")

    assert counted(sent, cuts) == len(calls)


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=4))
def test_data_without_the_http_2_preface_counts_as_no_call(sent: bytes, cuts: list[int]) -> None:
    assert counted(b"GET " + sent, cuts) == 0
