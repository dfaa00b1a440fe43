"""Counts the calls a client begins from the HTTP/2 frames it sends (RFC 9113, section 4.1).

gRPC rejects oversized calls and unknown methods without notifying the application. A call is a
stream that begins with a HEADERS frame; only the nine header bytes of each frame are parsed.
"""

from __future__ import annotations

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
_HEADERS = 1
_LAST_STREAM = (1 << 31) - 1


class CallCount:
    """Counts the calls in the bytes one client sends, in pieces of any size.

    Attributes:
        begun: Number of calls so far; stays 0 if the bytes do not begin with the HTTP/2 preface.
    """

    def __init__(self) -> None:
        self.begun = 0
        self._head = b""
        self._needed_bytes = len(_PREFACE)
        self._skip = 0
        self._last_stream = 0
        self._is_http2 = True

    def feed(self, piece: bytes) -> None:
        """Parse the next piece."""
        at = 0
        while self._is_http2 and at < len(piece):
            skipped = min(self._skip, len(piece) - at)
            self._skip -= skipped
            at += skipped
            part = piece[at : at + self._needed_bytes - len(self._head)]
            at += len(part)
            self._head += part
            if len(self._head) == self._needed_bytes:
                self._parse_head(self._head)
                self._head, self._needed_bytes = b"", _HEAD_BYTES

    def _parse_head(self, head: bytes) -> None:
        if self._needed_bytes == len(_PREFACE):
            self._is_http2 = head == _PREFACE
            return
        self._skip = int.from_bytes(head[:3])
        stream = int.from_bytes(head[5:]) & _LAST_STREAM
        # Trailers are a HEADERS frame of an existing stream.
        if head[3] == _HEADERS and stream > self._last_stream:
            self.begun += 1
            self._last_stream = stream
