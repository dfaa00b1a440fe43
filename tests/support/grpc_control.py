"""A control core behind real gRPC, with its access rules and servers, and clients of all kinds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from disagg_cluster.control.core import ControlCore
from disagg_cluster.control.decisions import Orders
from disagg_cluster.control.messages import (
    ControlReply,
    ControlRequest,
    RereadNodeFile,
    RereadReport,
    name_of,
)
from disagg_cluster.control.remote.coding import (
    METHODS,
    REPLY_METADATA,
    decode_answer,
    decode_status,
    encode_call,
)
from disagg_cluster.control.remote.token_file import TokenFile
from disagg_cluster.control.remote.transport import GrpcTransport, NetworkEndpoint
from disagg_cluster.control.views import DaemonView, NodeOverview, WorkerView
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.http.listen import ListenAddress, open_listener
from disagg_exporter.http.server.authentication import Access

LOG = logging.getLogger("test.grpc")
READY = WorkerView("w", WorkerState.READY, 1, pid=7, restart_seconds=60.0, gpus=("GPU-a", "GPU-b"))
TOKEN = "0123456789abcdef0123456789abcdef"


class Node:
    """A node controlled by the test."""

    def __init__(self) -> None:
        self.workers: tuple[WorkerView, ...] = (READY,)
        self.orders: list[Orders] = []

    def view(self) -> NodeOverview:
        return NodeOverview(DaemonView("1.0", 1, "node", "/run/x", 1.0), self.workers)

    def obey(self, orders: Orders, request_id: str) -> None:
        self.orders.append(orders)


class Served:
    """A core that is served over gRPC, on this host and, with `access`, on a port."""

    def __init__(
        self,
        folder: Path,
        access: Access | None = None,
        token: TokenFile | None = None,
        reread: RereadReport | None = None,
    ) -> None:
        self.folder = RunFolder(folder)
        self.node = Node()
        self._reread = reread or RereadReport()
        self.core = ControlCore(self.node, LOG, self._read)
        network = None
        self.port = 0
        self.listener = None
        if access is not None:
            self.listener = open_listener(ListenAddress("127.0.0.1", 0))
            self.port = self.listener.getsockname()[1]
            network = NetworkEndpoint(self.listener, lambda: access, token)
        self.transport = GrpcTransport(self.folder, self.core, LOG, network)

    async def _read(self, _verb: RereadNodeFile) -> RereadReport:
        return self._reread

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(60), self.transport.serving():
                yield
                self.core.end_watches()
        finally:
            await self.core.close()
            if self.listener is not None:
                self.listener.close()

    @property
    def here(self) -> str:
        """Its address on this host."""
        return f"unix:{self.folder.control_grpc}"

    @property
    def there(self) -> str:
        """Its address on the network."""
        return f"localhost:{self.port}"


class Client:
    """One channel; `raw` calls a method with bytes, `ask` with a request."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None = None) -> None:
        self.channel = channel
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    async def ask(self, request: ControlRequest, seconds: float = 10.0) -> list[ControlReply]:
        method = METHODS[name_of(request.verb)]
        data = encode_call(request)
        if method.streams:
            call = self.channel.unary_stream(method.path)
            answers = call(data, timeout=seconds, metadata=self._metadata)
            return [decode_answer(answer) async for answer in answers]
        answer = await self.raw(method.path, data, seconds)
        return (
            decode_status(answer, request.id)
            if method.verb == "status"
            else [decode_answer(answer)]
        )

    async def raw(self, path: str, data: bytes = b"", seconds: float = 10.0) -> bytes:
        call = self.channel.unary_unary(path)
        answer: bytes = await call(data, timeout=seconds, metadata=self._metadata)
        return answer

    async def refused(self, request: ControlRequest) -> tuple[str, ControlReply | None]:
        """Return the name of the status code that refuses it, and the reply sent with that."""
        try:
            await self.ask(request)
        except grpc.aio.AioRpcError as error:
            metadata: Mapping[str, Any] = dict(error.trailing_metadata() or ())
            reply = metadata.get(REPLY_METADATA)
            return error.code().name, None if reply is None else decode_answer(reply)
        raise AssertionError("it was granted")


@contextlib.asynccontextmanager
async def client(
    target: str, credentials: grpc.ChannelCredentials | None = None, token: str | None = None
) -> AsyncIterator[Client]:
    if credentials is None:
        channel = grpc.aio.insecure_channel(target)
    else:
        channel = grpc.aio.secure_channel(target, credentials)
    async with channel:
        yield Client(channel, token)
