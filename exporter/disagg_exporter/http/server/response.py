"""An answer as the bytes of HTTP/1.1."""

from __future__ import annotations

from email.utils import formatdate

from disagg_exporter.http.server.request_head import HeadError
from disagg_exporter.http.server.routes import PLAIN, Answer


def response_head(answer: Answer, extra: tuple[tuple[str, str], ...] = (), *, keeps: bool) -> bytes:
    """Status line and headers, of which `extra` take the place of ours."""
    fields = {
        "Server": "disagg-node",  # nothing that an attacker could use
        "Date": formatdate(usegmt=True),
        "Content-Type": answer.content_type,
        "Content-Length": str(len(answer.body)),
        **dict(answer.headers),
        **dict(extra),
    }
    if not keeps:
        fields["Connection"] = "close"
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    status = f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
    return f"{status}{lines}\r\n".encode("latin-1")


def refusal(error: HeadError) -> bytes:
    """The whole answer to a request that is refused unread."""
    body = f"{error.status.value} {error}\n".encode()
    return response_head(Answer(error.status, PLAIN, body), keeps=False) + body
