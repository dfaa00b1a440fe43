"""How workers are probed: those that were well all at once, the others each by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from disagg_cluster.life import Health
from disagg_cluster.listeners import listening_inodes
from disagg_cluster.probing import Probing
from disagg_cluster.readiness import ProbeResult, Target
from support.page_server import page_server

ILL = ProbeResult(Health.UNHEALTHY, "ill")


def probing(
    story: Callable[[Probing], Awaitable[None]],
    probe: Callable[[Target, int, float, frozenset[int]], ProbeResult],
) -> None:
    async def run() -> None:
        probing = Probing(probe, 10.0, workers=2)
        async with asyncio.timeout(20):
            await story(probing)
        probing.close()

    asyncio.run(run())


def test_who_plainly_still_is_well_is_not_probed() -> None:
    with page_server(lambda _path: b"") as base:
        target = Target(int(base.rpartition(":")[2]), "tiny")
        sockets = listening_inodes(target.host, target.port)

        async def story(probing: Probing) -> None:
            results = [probing.probe(target, 1, sockets) for _ in range(2)]
            assert (
                await asyncio.gather(*results)
                == [ProbeResult(Health.HEALTHY, "healthy", sockets)] * 2
            )

        probing(story, lambda *_: ILL)


def test_anybody_else_is_probed_with_what_was_proven() -> None:
    asked: list[tuple[int, int, float, frozenset[int]]] = []

    def probe(target: Target, session: int, seconds: float, proven: frozenset[int]) -> ProbeResult:
        asked.append((target.port, session, seconds, proven))
        return ILL

    async def story(probing: Probing) -> None:
        assert await probing.probe(Target(1, "new"), 8, frozenset()) is ILL
        assert await probing.probe(Target(1, "old"), 9, frozenset({7})) is ILL

    probing(story, probe)

    assert asked == [(1, 8, 10.0, frozenset()), (1, 9, 10.0, frozenset({7}))]


def test_a_probe_that_hangs_delays_no_other() -> None:
    over = threading.Event()

    def probe(target: Target, *_: object) -> ProbeResult:
        if target.served_model_name == "hangs":
            over.wait(20)
        return ILL

    async def story(probing: Probing) -> None:
        hangs = probing.probe(Target(1, "hangs"), 1, frozenset())
        assert await probing.probe(Target(1, "other"), 1, frozenset({7})) is ILL
        assert not hangs.done()
        over.set()
        await hangs

    probing(story, probe)


def test_a_glance_that_fails_says_nothing_of_anybody() -> None:
    """Nobody waits for ever, and the worker that it failed on harms no other."""

    async def story(probing: Probing) -> None:
        odd = probing.probe(Target(1, "odd", api_key="\N{SNOWMAN}"), 1, frozenset({7}))
        other = probing.probe(Target(1, "other"), 1, frozenset({8}))
        assert await asyncio.gather(odd, other) == [ILL, ILL]

    probing(story, lambda *_: ILL)
