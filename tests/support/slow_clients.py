"""Clients that never finish, in a separate process, so that they do not slow measurements down.

A client whose connection is ended connects again at the next tick.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, cycle, repeat

_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
_POST = b"POST /metrics HTTP/1.1\r\n%s\r\n\r\n"
KINDS = ("silent", "drip", "fat", "many", "body", "chunked", "pipelined", "asked_once")
TLS_KINDS = ("silent", "hello", "hello_drip", "tls_fat", "tls_drip", "tls_body", "tls_pipelined")


@functools.cache
def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@functools.cache
def _hello() -> bytes:
    """Return the first message of a TLS handshake."""
    out = ssl.MemoryBIO()
    client = _trusting().wrap_bio(ssl.MemoryBIO(), out)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def _pieces(kind: str) -> Iterator[bytes]:
    """Yield what a client sends, a piece each tick."""
    match kind:
        case "silent":
            return iter(())
        case "drip":
            return chain([_REQUEST[:-2]], cycle([b"X", b"-", b"y", b":z", b"\r\n"]))
        case "fat":
            return chain([_REQUEST[:-2]], repeat(b"X-Fat: " + b"a" * 65_000 + b"\r\n"))
        case "many":
            return chain([_REQUEST[:-2]], repeat(b"X-a: b\r\n" * 20))
        case "body":
            return chain([_POST % b"Content-Length: 900000000"], repeat(b"a" * 65_000))
        case "chunked":
            chunk = b"FFFF\r\n" + b"a" * 0xFFFF + b"\r\n"
            return chain([_POST % b"Transfer-Encoding: chunked"], repeat(chunk))
        case "pipelined":
            return repeat(_REQUEST * 100)
        case "asked_once":
            return iter((_REQUEST,))
        case "hello":
            return iter((_hello(),))
        case "hello_drip":
            return (bytes([byte]) for byte in _hello())
    raise ValueError(kind)


@dataclass
class _Client:
    carrier: socket.socket
    pieces: Iterator[bytes]
    reads: bool
    unsent: bytes = field(default=b"")

    def is_let_go(self) -> bool:
        """Send and read what is possible; return whether the server has ended the connection."""
        try:
            self.unsent = self.unsent or next(self.pieces, b"")
            if self.unsent:
                self.unsent = self.unsent[self.carrier.send(self.unsent) :]
            return self.reads and not self.carrier.recv(65536)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            return error.errno != errno.ENOTCONN


def _client(kind: str, port: int, address: str) -> _Client:
    over_tls, kind = kind.startswith("tls_"), kind.removeprefix("tls_")
    carrier = socket.socket()
    carrier.setblocking(over_tls)
    carrier.bind((address, 0))
    carrier.connect_ex(("127.0.0.1", port))
    if over_tls:
        with contextlib.suppress(OSError):
            carrier = _trusting().wrap_socket(carrier)
            carrier.setblocking(False)
    return _Client(carrier, _pieces(kind), reads=kind != "pipelined")


def main() -> None:
    """Run the clients until the standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("port", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("address")
    parser.add_argument("tick_seconds", type=float)
    options = parser.parse_args()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    which = (options.kind, options.port, options.address)
    clients = [_client(*which) for _ in range(options.count)]
    let_go = 0
    sys.stdout.write("connected\n")
    sys.stdout.flush()
    while not ended.wait(options.tick_seconds):
        for place, client in enumerate(clients):
            if client.is_let_go():
                let_go += 1
                client.carrier.close()
                clients[place] = _client(*which)
    sys.stdout.write(f"{let_go}\n")


@contextlib.contextmanager
def slow_clients(
    kind: str, port: int, address: str, count: int, tick_seconds: float = 0.2
) -> Iterator[None]:
    """Keep a number of clients of a kind connected while the block runs."""
    arguments = (kind, str(port), str(count), address, str(tick_seconds))
    with subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "connected\n"
            yield
        finally:
            process.stdin.close()
            sys.stderr.write(f"{kind}: let go {process.stdout.readline()}")


if __name__ == "__main__":
    main()
