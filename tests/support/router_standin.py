"""A stand-in for the `/workers` of vllm-router 0.1.17 with `--enable-igw`; it routes nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote

from support.http_serving import serving


@dataclass
class RouterStandin:
    """Its engines, and the requests that it got."""

    takes: bool = True
    garbage: bytes | None = None
    url: str = ""
    joined: list[dict[str, Any]] = field(default_factory=list)
    engines: dict[str, str] = field(default_factory=dict)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Return the status and value of an answer."""
        match method:
            case "GET":
                listed = [{"url": u, "worker_type": role} for u, role in self.engines.items()]
                return 200, {"workers": listed, "total": len(listed)}
            case "POST" if not self.takes:
                return 400, "Worker management is not supported in this mode"
            case "POST":
                member = json.loads(body)
                self.joined.append(member)
                self.engines[member["url"]] = member["worker_type"]
                return 200, {"success": True}
        url = unquote(path.removeprefix("/workers/"))
        if self.engines.pop(url, None) is None:
            return 404, {"error": f"Worker with URL {url} not found"}
        return 200, {"success": True}


@contextlib.contextmanager
def router_standin(*, takes: bool = True, garbage: bytes | None = None) -> Iterator[RouterStandin]:
    """Serve until the block ends; `url` is where."""
    router = RouterStandin(takes, garbage)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_DELETE(self) -> None:
            self._serve()

        def log_message(self, *_: object) -> None:
            pass

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, value = router.answer(self.command, self.path, body)
            data = json.dumps(value).encode() if router.garbage is None else router.garbage
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with serving(Handler) as router.url:
        yield router
