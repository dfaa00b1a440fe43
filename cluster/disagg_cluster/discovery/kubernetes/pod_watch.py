"""Follows the pods of this node at the API server: one list, then a watch for changes."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

from disagg_cluster.discovery.kubernetes.api_server import ApiRefusedError, ApiResponse, ApiServer
from disagg_cluster.discovery.kubernetes.pod_store import (
    MAX_OBJECT_CHARACTERS,
    MAX_PODS,
    ListReader,
    PodStore,
    StreamError,
    WatchOutcome,
)
from disagg_cluster.discovery.kubernetes.pods import Pod, read_pod
from disagg_cluster.host.foreign_json import parse_foreign
from disagg_exporter.collectors import CollectorHealth, DaemonExecutor, is_foreseen
from disagg_exporter.model import CollectorStatus
from disagg_exporter.model.counted import counted

COLLECTOR = "kube_api"
LIST_SECONDS = 30.0
# The server ends a watch after this long, and we a little later; it is then restarted.
WATCH_SECONDS = (240, 360)
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 30.0

_BLOCK_BYTES = 64 * 1024
_log = logging.getLogger(__name__)


class PodWatch:
    """The pods of one node as the API server reports them.

    Its last report stays valid while it is away: without it a node gets no new pods.

    Args:
        server: The API server.
        node: The node's name in Kubernetes (`spec.nodeName`).
        chance: Random source that spreads the nodes of a cluster in time; replaceable for tests.
    """

    def __init__(
        self, server: ApiServer, node: str, *, chance: random.Random | None = None
    ) -> None:
        self._server = server
        self._selector = f"fieldSelector=spec.nodeName%3D{quote(node, safe='')}"
        self._chance = chance or random.Random()
        self._health = CollectorHealth(
            COLLECTOR,
            _log,
            recovered="reports the pods of this node",
            untried="the API server was not asked yet",
        )
        self._store = PodStore(node)
        self._answer: ApiResponse | None = None
        self._ending = False
        self._listed = False

    def pods(self) -> tuple[Pod, ...]:
        """Return the node's pods; nothing before the first list."""
        return self._store.pods

    @property
    def listed(self) -> bool:
        """Whether the pods were listed once: a missing pod then does not exist."""
        return self._listed

    def status(self) -> CollectorStatus:
        """Return the collector `kube_api`; the duration is that of the last list."""
        return replace(self._health.status(), success=not self.why())

    def why(self) -> str:
        """Return why the pods are unavailable; empty while all of them are reported."""
        left_out = self._store.left_out
        too_many = f"{counted(left_out, 'pod')} more than {MAX_PODS}" if left_out else ""
        return self._health.why or too_many

    async def run(self) -> None:
        """Follow until cancelled."""
        loop = asyncio.get_running_loop()
        executor = DaemonExecutor(1, "kube-api")
        wait_seconds = FIRST_WAIT_SECONDS
        self._ending = False
        try:
            while True:
                began_ns = time.monotonic_ns()
                try:
                    await loop.run_in_executor(executor, self._follow)
                except Exception as error:  # noqa: BLE001 - what a server sends must not end us
                    if not is_foreseen(error):
                        # The pods are uncertain until they are listed again.
                        self._store.invalidate()
                    self._health.fail(error)
                # A watch that ends normally has lasted minutes; one that ends at once, even without
                # an error, must not be restarted in a tight loop.
                if time.monotonic_ns() - began_ns > 1e9 * LONGEST_WAIT_SECONDS:
                    wait_seconds = FIRST_WAIT_SECONDS
                await asyncio.sleep(wait_seconds * self._chance.uniform(0.5, 1.0))
                wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)
        finally:
            self._ending = True
            if self._answer is not None:
                self._answer.hang_up()
            executor.shutdown(wait=False)

    # What follows runs on the executor's one thread; the store's tuple is replaced as a whole.

    def _follow(self) -> None:
        """List if needed, then watch until the server ends it. Raises `DisaggError`."""
        if not self._store.resource_version:
            # At first any recent state will do, which the server has in memory. Once it no longer
            # has our version, only the latest is surely newer.
            self._list("" if self._listed else "&resourceVersion=0")
        try:
            outcome = self._watch()
        except ApiRefusedError as error:
            outcome = WatchOutcome.LIST if error.gone else WatchOutcome.REST
            why = str(error)
        else:
            why = "the API server ended the watch with an error"
        if outcome is not WatchOutcome.WATCH:
            self._store.invalidate()
        if outcome is WatchOutcome.REST:
            raise StreamError(why)

    def _list(self, version: str) -> None:
        began_ns = time.monotonic_ns()
        path = f"/api/v1/pods?{self._selector}{version}"
        reader, pods = ListReader(), []
        for item in self._items(path, reader, began_ns):
            pod = read_pod(item)
            if pod is not None:
                pods.append(pod)
        self._store.replace(pods, reader.resource_version)
        self._listed = True
        self._health.succeed((time.monotonic_ns() - began_ns) / 1e9)

    def _items(self, path: str, reader: ListReader, began_ns: int) -> Iterator[object]:
        answer = self._open(path, LIST_SECONDS)
        try:
            while data := answer.read(_BLOCK_BYTES):
                yield from reader.feed(data)
                if time.monotonic_ns() - began_ns > LIST_SECONDS * 1e9:
                    raise StreamError(f"the API server took over {LIST_SECONDS:g} s for a list")
            yield from reader.feed(b"")
        finally:
            self._close(answer)

    def _watch(self) -> WatchOutcome:
        seconds = self._chance.randint(*WATCH_SECONDS)
        path = (
            f"/api/v1/pods?{self._selector}&watch=1&allowWatchBookmarks=true"
            f"&resourceVersion={self._store.resource_version}&timeoutSeconds={seconds}"
        )
        answer = self._open(path, seconds + 30.0)
        try:
            self._health.succeed()
            while line := answer.line(MAX_OBJECT_CHARACTERS + 1):
                outcome = self._store.apply(_event(line))
                if outcome is not WatchOutcome.WATCH:
                    return outcome
                self._health.succeed()
            return WatchOutcome.WATCH
        finally:
            self._close(answer)

    def _open(self, path: str, read_seconds: float) -> ApiResponse:
        answer = self._server.get(path, read_seconds)
        self._answer = answer
        if self._ending:
            answer.hang_up()
        return answer

    def _close(self, answer: ApiResponse) -> None:
        self._answer = None
        answer.close()


def _event(line: bytes) -> object:
    if not line.endswith(b"\n") and len(line) > MAX_OBJECT_CHARACTERS:
        raise StreamError("the API server sent an object that is too large")
    try:
        event: object = parse_foreign(line)
    except ValueError:
        raise StreamError("the API server sent a change that is not JSON") from None
    return event
