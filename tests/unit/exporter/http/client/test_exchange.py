from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.http.client.exchange import ResponseParser
from disagg_exporter.http.client.unreachable import ResponseError

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
    b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX: y\r\n\r\n"
)
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\nhello world"


def read(raw: bytes, cuts: tuple[int, ...] = (), max_bytes: int = 1000) -> ResponseParser:
    """Read an answer that arrives in pieces and ends with the connection."""
    answer, places = ResponseParser(max_bytes), [0, *sorted(cuts), len(raw)]
    for start, end in pairwise(places):
        if start < end and answer.feed(raw[start:end]):
            return answer
    answer.end()
    return answer


def outcome(raw: bytes, cuts: tuple[int, ...]) -> tuple[int, bytes, bool] | str:
    try:
        answer = read(raw, cuts)
    except ResponseError as error:
        return str(error)
    return answer.status, answer.body, answer.keeps_open


@pytest.mark.parametrize(
    ("raw", "keeps_open"),
    [
        (PLAIN, True),
        (CHUNKED, True),
        (UNTIL_CLOSED, False),
        (PLAIN.replace(b"1.1", b"1.0"), False),
        (PLAIN.replace(b"\r\n\r\n", b"\r\nconnection: Close\r\n\r\n"), False),
        (PLAIN + b"HTTP/1.1 200 OK", False),
        (CHUNKED + b"HTTP/1.1 200 OK", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN, True),
    ],
)
def test_a_body_is_read_whole_and_the_connection_is_kept_if_allowed(
    raw: bytes, keeps_open: bool
) -> None:
    answer = read(raw)

    assert (answer.status, answer.body, answer.keeps_open) == (200, b"hello world", keeps_open)


@given(
    st.sampled_from([PLAIN, CHUNKED, UNTIL_CLOSED, PLAIN.replace(b"200", b"404")]),
    st.lists(st.integers(0, 120), max_size=5).map(tuple),
    st.one_of(st.just(()), st.tuples(st.integers(0, 110), st.binary(max_size=4))),
)
def test_a_response_is_parsed_the_same_however_it_is_split(
    raw: bytes, cuts: tuple[int, ...], change: tuple[int, bytes]
) -> None:
    """Also a response with bytes inserted somewhere."""
    if change:
        raw = raw[: change[0]] + change[1] + raw[change[0] :]
    whole, pieces = outcome(raw, ()), outcome(raw, tuple(c for c in cuts if c < len(raw)))

    # Whether the connection may be kept depends on unsolicited bytes and when they came.
    assert pieces[:2] == whole[:2] if not isinstance(whole, str) else isinstance(pieces, str)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "the connection was closed without an answer"),
        (PLAIN[:-1], "the answer is cut off"),
        (PLAIN[:20], "the answer is cut off"),
        (CHUNKED[:-2], "the answer is cut off"),
        (b"garbage", "the answer is not HTTP"),
        (b"HTTP/2 200\r\n\r\n", "the answer is not HTTP"),
        (PLAIN.replace(b"11", b"-1"), "the answer is not HTTP"),
        (PLAIN.replace(b"\r\n\r\n", b"\r\nContent-Length: 12\r\n\r\n"), "the answer is not HTTP"),
        (PLAIN.replace(b"\r\n\r\n", b"\r\nno field\r\n\r\n"), "the answer is not HTTP"),
        (CHUNKED.replace(b"6;x", b"-6"), "the answer is not HTTP"),
        (CHUNKED.replace(b"hello", b"hello!"), "the answer is not HTTP"),
        (
            CHUNKED.replace(b"Chunked", b"gzip"),
            "the answer is encoded in a way that was not asked for",
        ),
        (PLAIN.replace(b"11", b"1001"), "the page is larger than 1000 bytes"),
        (CHUNKED.replace(b"6;x=y", b"6000"), "the page is larger than 1000 bytes"),
        (UNTIL_CLOSED + b"x" * 1000, "the page is larger than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 66_000, "the answer is not HTTP"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 3000, "the page is larger than 1000 bytes"),
        (CHUNKED.replace(b";x=y", b";" + b"x" * 70_000), "the page is larger than 1000 bytes"),
    ],
)
def test_an_invalid_response_is_refused_with_the_reason(raw: bytes, why: str) -> None:
    with pytest.raises(ResponseError, match=f"^{why}$"):
        read(raw)


def test_an_error_response_is_complete_after_its_head() -> None:
    answer = ResponseParser(1000)

    assert answer.feed(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5000000\r\n\r\n")
    assert (answer.status, answer.keeps_open) == (404, False)


@pytest.mark.parametrize(
    ("head", "each", "most"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 400_000),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x", 20_000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n", 300_000),
    ],
)
def test_a_response_in_tiny_parts_is_refused_early(head: bytes, each: bytes, most: int) -> None:
    """All pages are read on one thread: no server may keep it busy."""
    answer = ResponseParser(8 << 20)
    answer.feed(head)

    with pytest.raises(ResponseError):
        any(answer.feed(each) for _ in range(most // len(each)))
