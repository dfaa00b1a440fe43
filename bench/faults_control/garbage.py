"""Garbage for every port and socket of a node: bytes that are no request, endless requests."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

THREADS = 6
_TIMEOUT_SECONDS = 0.5
_MOST_BYTES = 60_000
_PAUSE_SECONDS = 0.01

_STARTS = (
    b"",
    b"GET /metrics HTTP/1.1\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b'{"version": 1, "id": "x", "verb": ',
    b"GET " + b"/" * 40_000,
)
_KINDS = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM)


@contextlib.contextmanager
def garbage(ports: Sequence[int], sockets: Sequence[Path], seed: str) -> Iterator[None]:
    """Send garbage to all of them, in an order drawn by the seed, until the block ends."""
    over = threading.Event()
    targets: list[int | Path] = [*ports, *sockets]

    def send(number: int) -> None:
        chance = random.Random(f"{seed}-{number}")
        while not over.is_set():
            _send(chance.choice(targets), chance)
            # An unlimited flood would only measure the machine.
            over.wait(_PAUSE_SECONDS)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _send(target: int | Path, chance: random.Random) -> None:
    text = chance.choice(_STARTS) + chance.randbytes(chance.randrange(1, _MOST_BYTES))
    for kind in _KINDS if isinstance(target, Path) else (socket.SOCK_STREAM,):
        family = socket.AF_UNIX if isinstance(target, Path) else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, kind) as link:
            link.settimeout(_TIMEOUT_SECONDS)
            link.connect(str(target) if isinstance(target, Path) else ("127.0.0.1", target))
            link.sendall(text)
            if chance.random() < 0.5:
                link.recv(4096)
