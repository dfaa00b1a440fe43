"""A stand-in for SGLang's server that switches its role; modelled on its source, without SGLang.

`POST /pd_role_switch` as of sgl-project/sglang#28403: refused without `--enable-pd-role-switch`,
while it has requests, for an unknown role and once a switch has failed; `already in target role`
if there is nothing to do. `GET /server_info` returns the arguments, and the live role in
`internal_states`. A stand-in that lies answers all that and keeps its role.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.http_serving import serving


@dataclass
class SglangStandin:
    """The state of the stand-in, and the requests that it got."""

    role: str = "prefill"
    enabled: bool = True
    idle: bool = True
    lies: bool = False
    api_key: str = ""
    garbage: bytes | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def server_info(self) -> dict[str, Any]:
        """Return the server's arguments at its start, and the scheduler's state."""
        return {
            "disaggregation_mode": "prefill",
            "enable_pd_role_switch": self.enabled,
            "internal_states": [{"disaggregation_mode": self.role}],
        }

    def switch(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer of a request to switch."""
        self.asked.append(body)
        new, old = body.get("new_role"), self.role
        refused = {"success": False, "old_role": old, "new_role": old}
        if not self.enabled:
            return 400, refused | {"message": "requires --enable-pd-role-switch"}
        if new not in ("prefill", "decode"):
            return 400, refused | {"message": f"invalid new_role: {new}"}
        if new == old:
            done = {"success": True, "message": "already in target role"}
            return 200, done | {"old_role": old, "new_role": old}
        if not self.idle:
            return 400, refused | {"message": "not idle: drain first"}
        if not self.lies:
            self.role = new
        return 200, {"success": True, "message": "ok", "old_role": old, "new_role": new}


@contextlib.contextmanager
def sglang_standin(engine: SglangStandin) -> Iterator[SglangStandin]:
    """Serve until the block ends; `engine.url` is where."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/server_info":
                self._send(200, engine.server_info())
            else:
                self._send(404, {"error": "not found"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/pd_role_switch":
                self._send(*engine.switch(body))
            else:
                self._send(404, {"error": "not found"})

        def log_message(self, *_: object) -> None:
            pass

        def _send(self, status: int, value: dict[str, Any]) -> None:
            if engine.api_key and self.headers.get("Authorization") != f"Bearer {engine.api_key}":
                status, value = 401, {"error": "unauthorized"}
            data = json.dumps(value).encode() if engine.garbage is None else engine.garbage
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with serving(Handler) as engine.url:
        yield engine
