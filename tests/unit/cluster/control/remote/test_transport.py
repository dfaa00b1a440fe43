"""The proxies' own thread: whoever holds them open is told when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import cast

import pytest

from disagg_cluster.control.remote import transport
from disagg_cluster.control.remote.client_proxy import ClientProxy
from disagg_cluster.control.remote.transport import _on_their_own_thread


def test_the_end_of_the_proxy_thread_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "_TOKEN_SECONDS", 0.01)

    def look() -> None:
        raise MemoryError

    async def story() -> None:
        async with asyncio.timeout(20), _on_their_own_thread([], look) as is_open:
            while is_open():
                await asyncio.sleep(0.01)

    asyncio.run(story())


class FakeProxy:
    """A proxy that records whether it is open, and on which thread."""

    def __init__(self) -> None:
        self.is_open = False
        self.thread: threading.Thread | None = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        self.is_open, self.thread = True, threading.current_thread()
        try:
            yield
        finally:
            self.is_open = False


def test_the_proxies_are_open_on_their_own_thread_until_the_block_ends() -> None:
    proxies = [FakeProxy(), FakeProxy()]

    async def story() -> None:
        async with asyncio.timeout(20):
            async with _on_their_own_thread(cast("list[ClientProxy]", proxies), None) as is_open:
                assert is_open()
                assert [proxy.is_open for proxy in proxies] == [True, True]
            assert not is_open()
            assert [proxy.is_open for proxy in proxies] == [False, False]

    asyncio.run(story())
    (thread,) = {proxy.thread for proxy in proxies}
    assert thread not in (None, threading.current_thread())
