"""A tiny TCP server on 127.0.0.1 that treats each connection as a test defines."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def raw_server(
    behave: Callable[[socket.socket, threading.Event], None], *, reads_head: bool = True
) -> Iterator[tuple[str, list[bytes]]]:
    """Serve connections one by one; yield the base address and the request heads received.

    `behave` gets the connection, after its request head was read (if it `reads_head`), and an event
    that is set when the test is over: to never answer, wait for it.
    """
    over = threading.Event()
    heads: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                head = b""
                while reads_head and b"\r\n\r\n" not in head and (part := connection.recv(65536)):
                    head += part
                heads.append(head)
                behave(connection, over)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heads
    finally:
        over.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        assert not thread.is_alive()
