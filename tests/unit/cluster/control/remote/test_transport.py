"""The proxies' own thread: whoever holds them open is told when it has ended."""

from __future__ import annotations

import asyncio

import pytest

from disagg_cluster.control.remote import transport
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


def test_the_proxies_stay_open_until_the_block_ends() -> None:
    async def story() -> bool:
        async with asyncio.timeout(20), _on_their_own_thread([], None) as is_open:
            return is_open()

    assert asyncio.run(story())
