"""Opens the proxies and the gRPC servers behind them, and recreates them if their files vanish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from disagg_cluster.control.core import ControlCore
from disagg_cluster.control.refusal import RefusalReason
from disagg_cluster.control.remote.authentication import (
    Authenticate,
    local_authentication,
    tls_authentication,
)
from disagg_cluster.control.remote.client_proxy import ClientProxy
from disagg_cluster.control.remote.connections import ClientConnections
from disagg_cluster.control.remote.server import ControlServer
from disagg_cluster.control.remote.token_file import TokenFile
from disagg_cluster.host.files.private_files import make_inner
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_exporter.collectors import CollectorHealth, DaemonThread
from disagg_exporter.http.server.authentication import Access
from disagg_exporter.model import CollectorStatus
from disagg_exporter.steps.local_sockets import identity_of, listening_socket, unlink_if_same

COLLECTOR = "control_grpc"
_POLL_SECONDS = 1.0
_TOKEN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class NetworkEndpoint:
    """The endpoint for other hosts: a listening port and the access conditions.

    `token` is the required token; None if none is.
    """

    listener: socket.socket
    access: Callable[[], Access]
    token: TokenFile | None = None


class GrpcTransport:
    """Serves a core over gRPC.

    Args:
        folder: The run folder, which gets a socket for root and this user.
        core: Answers requests.
        log: Logs refused clients and failures to serve.
        network: The endpoint for other hosts; None to serve this host only.
    """

    def __init__(
        self,
        folder: RunFolder,
        core: ControlCore,
        log: logging.Logger,
        network: NetworkEndpoint | None = None,
    ) -> None:
        self._folder = folder
        self._core = core
        self._log = log
        self._network = network
        self._health = CollectorHealth(COLLECTOR, log, recovered="answers requests again")

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve until the block ends."""
        opened = asyncio.Event()
        maintaining = asyncio.create_task(self._maintain(opened))
        try:
            await opened.wait()
            yield
        finally:
            maintaining.cancel()
            await asyncio.gather(maintaining, return_exceptions=True)

    def status(self) -> CollectorStatus:
        """The collector `control_grpc`; failed while it cannot serve."""
        return self._health.status()

    async def _maintain(self, opened: asyncio.Event) -> None:
        while True:
            with self._health.round():
                async with self._all_open() as is_there:
                    opened.set()
                    while is_there():
                        self._health.succeed()
                        await asyncio.sleep(_POLL_SECONDS)
                    self._log.warning(
                        "%s has vanished, or nothing listens there any more: recreated",
                        self._folder.control_grpc,
                    )
            opened.set()
            await asyncio.sleep(_POLL_SECONDS)

    @contextlib.asynccontextmanager
    async def _all_open(self) -> AsyncIterator[Callable[[], bool]]:
        """Open everything until the block ends; yields a check that files and thread are alive."""
        inner = self._folder.grpc
        make_inner(inner)
        for left in inner.iterdir():
            left.unlink()
        loop = asyncio.get_running_loop()
        connections, servers = ClientConnections(inner), list[ControlServer]()

        def refused(outcome: str, reason: RefusalReason) -> None:
            loop.call_soon_threadsafe(self._core.count, "unknown", outcome, reason)

        async with contextlib.AsyncExitStack() as stack:

            async def behind(
                listener: socket.socket,
                name: str,
                authenticate: Authenticate,
                token: TokenFile | None,
            ) -> ClientProxy:
                server = ControlServer(self._core, connections, self._log, token)
                await stack.enter_async_context(server.listening(inner / name))
                servers.append(server)
                return ClientProxy(
                    listener, str(inner / name), authenticate, connections, refused, self._log
                )

            local = listening_socket(self._folder.control_grpc, kind=socket.SOCK_STREAM)
            ours = identity_of(self._folder.control_grpc)
            stack.callback(unlink_if_same, self._folder.control_grpc, ours)
            proxies = [await behind(local, "local", local_authentication(), None)]
            if (network := self._network) is not None:
                authenticate = tls_authentication(
                    network.access, has_token=network.token is not None
                )
                # A copy, because the original is listened on again after a restart.
                proxies.append(
                    await behind(network.listener.dup(), "network", authenticate, network.token)
                )
            files = {
                path: identity_of(path)
                for path in (self._folder.control_grpc, inner, *inner.iterdir())
            }
            reload = network.token.reload if network and network.token else None
            is_open = await stack.enter_async_context(_on_their_own_thread(proxies, reload))
            # Runs before the proxies close, so that watches receive their end.
            for server in servers:
                stack.push_async_callback(server.end)
            yield (
                lambda: is_open() and all(identity_of(path) == file for path, file in files.items())
            )


@contextlib.asynccontextmanager
async def _on_their_own_thread(
    proxies: list[ClientProxy], reload: Callable[[], None] | None
) -> AsyncIterator[Callable[[], bool]]:
    """Run proxies and regular calls of `reload` on a separate thread until the block ends.

    Yields a check that the thread still holds them open.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    opened: asyncio.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = loop.create_future()

    async def hold_open() -> None:
        closing = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            for proxy in proxies:
                await stack.enter_async_context(proxy.open())
            loop.call_soon_threadsafe(opened.set_result, (asyncio.get_running_loop(), closing))
            while not closing.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TOKEN_SECONDS):
                        await closing.wait()
                if reload is not None:
                    reload()

    def run() -> None:
        try:
            asyncio.run(hold_open())
        except BaseException as error:  # noqa: BLE001 - reported to the waiting caller
            loop.call_soon_threadsafe(_fail, opened, error)
        finally:
            loop.call_soon_threadsafe(ended.set)

    DaemonThread(run, "control-proxies").start()
    its_loop, closing = await opened
    try:
        yield lambda: not ended.is_set()
    finally:
        # After an error its loop may be closed already.
        with contextlib.suppress(RuntimeError):
            its_loop.call_soon_threadsafe(closing.set)
        await ended.wait()


def _fail(opened: asyncio.Future[Any], error: BaseException) -> None:
    if not opened.done():
        opened.set_exception(error)
