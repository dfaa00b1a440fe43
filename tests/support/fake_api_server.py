"""A fake API server for pods: list and watch over real HTTP, with the real one's peculiarities.

It has resource versions, a field selector, bookmarks, chunked watches, a compacted past (410 as a
status and as an event) and tokens that expire. Written for the tests because kmock 0.8 has none of
these.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import uuid
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

ApiObject = dict[str, Any]

NODE = "gpu-7"


def uid_of(name: str) -> str:
    """Return the UID of a name, always the same."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def pod_json(
    name: str,
    *,
    uid: str | None = None,
    node: str = NODE,
    namespace: str = "llm",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    args: tuple[str, ...] = (),
    phase: str = "Running",
    ip: str = "10.0.0.7",
    port: int = 8000,
    deleting: bool = False,
) -> ApiObject:
    """Return a pod with one container called engine, as the API writes it."""
    metadata: ApiObject = {"name": name, "namespace": namespace, "uid": uid or uid_of(name)}
    metadata |= {"labels": dict(labels or {}), "annotations": dict(annotations or {})}
    metadata["managedFields"] = [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    engine = {
        "name": "engine",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": list(args),
        "env": [{"name": "HF_TOKEN", "value": "secret"}],
        "ports": [{"containerPort": port, "protocol": "TCP"}],
    }
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [engine]},
        "status": {"phase": phase, "podIP": ip},
    }


class FakeApiServer:
    """The cluster's pods; `put` and `delete` change them and notify watchers at once."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.pods: dict[str, ApiObject] = {}
        self.events: list[tuple[int, ApiObject]] = []
        self.version = 100
        self.oldest = 0
        self.token = ""
        self.status = 0
        self.fail_watch_code = 0
        self.bookmark_seconds = 0.05
        self.over = False
        self.cut_watches = 0
        self.requests: list[str] = []

    def put(self, pod: ApiObject) -> None:
        """Add or change a pod."""
        with self.changed:
            uid = pod["metadata"]["uid"]
            self._event("MODIFIED" if uid in self.pods else "ADDED", pod)
            self.pods[uid] = pod

    def delete(self, name: str) -> None:
        """Remove a pod."""
        with self.changed:
            uid = next(u for u, p in self.pods.items() if p["metadata"]["name"] == name)
            self._event("DELETED", self.pods.pop(uid))

    def forget(self) -> None:
        """Forget the past, as etcd's compaction does."""
        with self.changed:
            self.oldest = self.version
            self.events.clear()
            self.changed.notify_all()

    def hang_up(self) -> None:
        """Cut every watch, as a restart of the server does."""
        with self.changed:
            self.cut_watches += 1
            self.changed.notify_all()

    def _event(self, kind: str, pod: ApiObject) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        # The event keeps the pod of that moment, whatever the test changes later.
        self.events.append((self.version, {"type": kind, "object": json.loads(json.dumps(pod))}))
        del self.events[:-1000]
        self.changed.notify_all()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Ignore clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: FakeApiServer

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        url, api = urlsplit(self.path), self.api
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        with api.changed:
            # Recorded together, so that a test that has observed the request can cut it.
            api.requests.append(self.path)
            cut = api.cut_watches
            refused = api.token and self.headers["Authorization"] != f"Bearer {api.token}"
            status = 401 if refused else api.status
        if status:
            self._whole(status, {"kind": "Status", "code": status})
        elif url.path != "/api/v1/pods":
            self._whole(404, {})
        elif query.get("watch"):
            with contextlib.suppress(OSError):
                self._watch(query, cut)
        else:
            with api.changed:
                items = [pod for pod in api.pods.values() if _selected(pod, query)]
                version = str(api.version)
            metadata = {"resourceVersion": version}
            self._whole(200, {"kind": "PodList", "metadata": metadata, "items": items})

    def _whole(self, status: int, body: ApiObject) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, query: dict[str, str], cut: int) -> None:
        api, seen = self.api, int(query["resourceVersion"])
        with api.changed:
            if seen < api.oldest:
                self._whole(410, {"kind": "Status", "code": 410})
                return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while True:
            with api.changed:
                # Changes since the request or the last answer cause no further notification.
                if api.cut_watches == cut and api.version == seen:
                    api.changed.wait(api.bookmark_seconds)
                if api.over or api.cut_watches != cut:
                    self.close_connection = True
                    return
                if code := api.fail_watch_code:
                    api.fail_watch_code = 0
                    news: list[ApiObject] = [{"type": "ERROR", "object": {"code": code}}]
                else:
                    events = [event for version, event in api.events if version > seen]
                    news = [event for event in events if _selected(event["object"], query)]
                    metadata = {"resourceVersion": str(api.version)}
                    bookmark = {"type": "BOOKMARK", "object": {"metadata": metadata}}
                    news = news if events else [bookmark]
                    seen = api.version
            for event in news:
                line = json.dumps(event).encode() + b"\n"
                # In two chunks, as the reader must not depend on where chunks end.
                for part in (line[:7], line[7:]):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))


def _selected(pod: ApiObject, query: dict[str, str]) -> bool:
    return query.get("fieldSelector") == f"spec.nodeName={pod['spec']['nodeName']}"


@contextlib.contextmanager
def fake_api_server(tls: ssl.SSLContext | None = None) -> Iterator[tuple[FakeApiServer, str]]:
    """Serve until the block ends; yield the cluster and its address."""
    api = FakeApiServer()
    handler = type("Handler", (_Handler,), {"api": api})
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield api, f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        with api.changed:
            api.over = True
            api.changed.notify_all()
        server.shutdown()
        server.server_close()
        thread.join(10)
