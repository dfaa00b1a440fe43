import socket
import threading
import time
from typing import Any

from disagg_exporter.http.deadline_socket import DeadlineSocket
from disagg_exporter.http.server.admission import RefusalCounts
from disagg_exporter.http.server.authentication import OPEN
from disagg_exporter.http.server.connection import ConnectionHandler
from disagg_exporter.http.server.connections import Connection
from disagg_exporter.http.server.request import RequestReader
from support.golden_server import golden_site

PATIENCE_SECONDS = 20.0


class HeldAfterSending(DeadlineSocket):
    """A socket whose thread comes no further once an answer is out, until it is let go."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(fileno=descriptor)
        self.go_on = threading.Event()

    def sendall(self, data: Any, flags: int = 0) -> None:
        super().sendall(data, flags)
        assert self.go_on.wait(PATIENCE_SECONDS)


def test_a_clients_idle_time_begins_no_later_than_its_response_arrives() -> None:
    """Otherwise a client that was answered later could be displaced instead of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        clients = socket.create_connection(listener.getsockname(), timeout=PATIENCE_SECONDS)
        server = HeldAfterSending(listener.accept()[0].detach())
    connection = Connection(1, "127.0.0.1", server, time.monotonic())
    handler = ConnectionHandler(
        connection,
        RequestReader(server),
        None,
        golden_site(),
        lambda: OPEN,
        RefusalCounts(),
        PATIENCE_SECONDS,
    )
    thread = threading.Thread(target=handler.serve, args=(None,))
    with server, clients:
        thread.start()
        clients.sendall(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
        assert clients.recv(65536).startswith(b"HTTP/1.1 200 ")
        since_seconds, read_seconds = connection.since_seconds, time.monotonic()
        server.go_on.set()
        clients.shutdown(socket.SHUT_WR)
        thread.join(PATIENCE_SECONDS)

    assert since_seconds <= read_seconds
    assert connection.since_seconds == since_seconds
