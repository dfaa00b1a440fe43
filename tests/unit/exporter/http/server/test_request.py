"""What is accepted as a request, and what is refused unread."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disagg_exporter.http.server.request import (
    MAX_HEAD_BYTES,
    HeadError,
    RequestHead,
    end_of_head,
    parse_head,
)

GET = b"GET /metrics HTTP/1.1\r\n"
POST = b"POST /metrics HTTP/1.1\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def parsed(received: bytes) -> RequestHead | None:
    """The head, received at once."""
    end = end_of_head(received)
    return None if end is None else parse_head(received[:end])


def refused(received: bytes) -> int:
    """The status of the answer to what is received at once."""
    with pytest.raises(HeadError) as caught:
        parsed(received)
    return caught.value.status.value


def test_a_request_is_read() -> None:
    head = parsed(GET + b"Host: x\r\nAccept: a\r\naccept:\tb \r\nEmpty:\r\n\r\nGET ")

    assert head is not None
    assert (head.method, head.target, head.keeps, head.has_body) == ("GET", "/metrics", True, False)
    assert head.headers == {"host": "x", "accept": "a, b", "empty": ""}


def test_an_empty_line_before_a_request_is_skipped() -> None:
    head = parsed(b"\r\n" + GET + b"\r\n")

    assert head is not None
    assert head.target == "/metrics"


@pytest.mark.parametrize(
    ("head", "keeps", "has_body"),
    [
        (GET, True, False),
        (GET + b"Connection: upgrade, Close\r\n", False, False),
        (b"GET / HTTP/1.0\r\n", False, False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n", False, False),
        (POST + b"Content-Length: 0\r\n", True, False),
        (POST + b"Content-Length: 1\r\n", False, True),
        (POST + b"Content-Length: " + b"9" * 5000 + b"\r\n", False, True),
        (POST + CHUNKED, False, True),
    ],
)
def test_a_head_tells_keep_alive_and_whether_a_body_follows(
    head: bytes, keeps: bool, has_body: bool
) -> None:
    found = parsed(head + b"\r\n")

    assert found is not None
    assert (found.keeps, found.has_body) == (keeps, has_body)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(POST + b"Content-Length: 5\r\nContent-Length: 5\r\n", id="length twice"),
        pytest.param(POST + b"Content-Length: 5\r\ncontent-length: 6\r\n", id="two lengths"),
        pytest.param(POST + b"Content-Length: 5, 5\r\n", id="list of lengths"),
        pytest.param(POST + b"Content-Length: +5\r\n", id="signed length"),
        pytest.param(POST + b"Content-Length: -5\r\n", id="negative length"),
        pytest.param(POST + b"Content-Length: 0x5\r\n", id="hexadecimal length"),
        pytest.param(POST + b"Content-Length: 1_0\r\n", id="underscored length"),
        pytest.param(POST + b"Content-Length: \xb2\r\n", id="superscript length"),
        pytest.param(POST + b"Content-Length:\r\n", id="empty length"),
        pytest.param(POST + b"Content-Length: 5\r\n" + CHUNKED, id="length and coding"),
        pytest.param(POST + CHUNKED + CHUNKED, id="coding twice"),
        pytest.param(POST + b"Transfer-Encoding: chunked, identity\r\n", id="coding unknown"),
        pytest.param(POST + b"Transfer-Encoding: xchunked\r\n", id="coding misspelt"),
        pytest.param(b"POST / HTTP/1.0\r\n" + CHUNKED, id="coding in 1.0"),
        pytest.param(GET + b"Host: a\r\nHost: b\r\n", id="two hosts"),
        pytest.param(GET + b"Host : x\r\n", id="space before colon"),
        pytest.param(GET + b"Host\t: x\r\n", id="tab before colon"),
        pytest.param(GET + b"Accept: a\r\n b\r\n", id="folded"),
        pytest.param(GET + b"Accept: a\r\n\tb\r\n", id="folded by tab"),
        pytest.param(GET + b" Accept: a\r\n", id="folded first"),
        pytest.param(GET + b": x\r\n", id="no name"),
        pytest.param(GET + b"Accept\r\n", id="no colon"),
        pytest.param(GET + b"Acc(ept: x\r\n", id="no token"),
        pytest.param(GET + b"Acc\xe9pt: x\r\n", id="no ASCII"),
        pytest.param(GET + b"Accept: a\x00b\r\n", id="NUL"),
        pytest.param(GET + b"Accept: a\x0bb\r\n", id="vertical tab"),
        pytest.param(GET + b"Accept: a\nX: b\r\n", id="bare LF"),
        pytest.param(GET + b"Accept: a\rX: b\r\n", id="bare CR"),
        pytest.param(GET + b"Accept: a\r\r\n", id="CR CR LF"),
        pytest.param(b"GET  / HTTP/1.1\r\n", id="two spaces"),
        pytest.param(b"GET\t/ HTTP/1.1\r\n", id="tab"),
        pytest.param(b" GET / HTTP/1.1\r\n", id="space first"),
        pytest.param(b"GET / HTTP/1.1 \r\n", id="space last"),
        pytest.param(b"GET /\r\n", id="HTTP/0.9"),
        pytest.param(b"GET / http/1.1\r\n", id="small letters"),
        pytest.param(b"GET / HTTP/1.10\r\n", id="two digits"),
        pytest.param(b"GET / HTTP/x\r\n", id="no version"),
        pytest.param(b"GET /\xe9 HTTP/1.1\r\n", id="target not ASCII"),
        pytest.param(b"G{T / HTTP/1.1\r\n", id="method no token"),
        pytest.param(b"\r\n\r\n" + GET, id="two empty lines"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\r\n", id="TLS"),
    ],
)
def test_an_ambiguous_head_is_refused(head: bytes) -> None:
    assert refused(head + b"\r\n") == 400


def test_a_line_that_ends_in_lf_alone_is_refused_before_the_head_ends() -> None:
    assert refused(b"GET / HTTP/1.1\n") == 400


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"BREW / HTTP/1.1\r\n\r\n", 501),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\n\r\n", 505),
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /" + b"a" * MAX_HEAD_BYTES, 414),
        (GET + b"X: y\r\n" * 101 + b"\r\n", 431),
        (GET + b"X: " + b"y" * MAX_HEAD_BYTES, 431),
        ((GET + b"X: " + b"y" * MAX_HEAD_BYTES)[: MAX_HEAD_BYTES - 1] + b"\r\n\r\n", 431),
    ],
)
def test_unsupported_and_oversized_requests_are_refused(head: bytes, status: int) -> None:
    assert refused(head) == status


def test_a_head_of_exactly_the_maximum_size_is_accepted() -> None:
    padding = b"y" * (MAX_HEAD_BYTES - len(GET) - len(b"X: \r\n\r\n"))

    head = parsed(GET + b"X: " + padding + b"\r\n\r\n")

    assert head is not None
    assert head.header("x") == padding.decode()


def outcome(pieces: list[bytes]) -> object:
    """What becomes of a head that is received in pieces."""
    received, searched = b"", 0
    try:
        for piece in pieces:
            received += piece
            end = end_of_head(received, searched)
            if end is not None:
                return parse_head(received[:end])
            searched = len(received)
    except HeadError as error:
        return error.status
    return None


LINES = st.sampled_from(
    [b"GET / HTTP/1.1", b"Host: x", b"Content-Length: 1", b" x", b"a:b", b"", b"\x00", b"\xff"]
)
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\r\n", b"\r\n\r\n"])
BYTES = st.lists(st.tuples(LINES, ENDS).map(b"".join), max_size=8).map(b"".join) | st.binary()


@given(BYTES, st.lists(st.integers(0, 200), max_size=6))
@example(b"GET / HTTP/1.1\r\n\r\n", [15])
@example(b"GET / HTTP/1.1\r\n\r\n", [16, 17])
@example(b"GET / HTTP/1.1\n\r\n", [15])
def test_any_bytes_are_parsed_the_same_however_they_are_split(
    received: bytes, cuts: list[int]
) -> None:
    places = [0, *sorted(min(cut, len(received)) for cut in cuts), len(received)]
    pieces = [received[a:b] for a, b in itertools.pairwise(places)]

    bytewise = outcome([received[place : place + 1] for place in range(len(received))])

    assert outcome(pieces) == bytewise


@given(BYTES)
def test_an_accepted_head_contains_no_line_break_or_nul(received: bytes) -> None:
    found = outcome([received])

    if isinstance(found, RequestHead):
        for text in (found.method, found.target, *found.headers, *found.headers.values()):
            assert not set(text) & set("\r\n\0")
