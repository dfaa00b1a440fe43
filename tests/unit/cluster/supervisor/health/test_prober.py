"""How workers are probed: those that were healthy in one batch, the others individually."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from disagg_cluster.host.tcp_listeners import listening_inodes
from disagg_cluster.lifecycle.state import Health
from disagg_cluster.supervisor.health.prober import Prober
from disagg_cluster.supervisor.health.readiness import ProbeResult, ProbeTarget
from support.page_server import page_server

ILL = ProbeResult(Health.UNHEALTHY, "ill")


def probing(
    story: Callable[[Prober], Awaitable[None]],
    probe: Callable[[ProbeTarget, int, float, frozenset[int]], ProbeResult],
    seconds: float = 10.0,
) -> None:
    async def run() -> None:
        probing = Prober(probe, seconds, workers=2, late_seconds=0.1)
        async with asyncio.timeout(20):
            await story(probing)
        probing.close()

    asyncio.run(run())


def test_workers_confirmed_by_the_batch_probe_are_not_probed_individually() -> None:
    with page_server(lambda _path: b"") as base:
        target = ProbeTarget(int(base.rpartition(":")[2]), "tiny")
        sockets = listening_inodes(target.host, target.port)

        async def story(probing: Prober) -> None:
            results = [probing.probe(target, 1, sockets) for _ in range(2)]
            assert (
                await asyncio.gather(*results)
                == [ProbeResult(Health.HEALTHY, "healthy", sockets)] * 2
            )

        probing(story, lambda *_: ILL)


def test_other_workers_are_probed_individually_with_their_proven_sockets() -> None:
    asked: list[tuple[int, int, float, frozenset[int]]] = []

    def probe(
        target: ProbeTarget, session: int, seconds: float, proven: frozenset[int]
    ) -> ProbeResult:
        asked.append((target.port, session, seconds, proven))
        return ILL

    async def story(probing: Prober) -> None:
        assert await probing.probe(ProbeTarget(1, "new"), 8, frozenset()) is ILL
        assert await probing.probe(ProbeTarget(1, "old"), 9, frozenset({7})) is ILL

    probing(story, probe)

    assert asked == [(1, 8, 10.0, frozenset()), (1, 9, 10.0, frozenset({7}))]


def test_a_probe_that_hangs_delays_no_other() -> None:
    over = threading.Event()

    def probe(target: ProbeTarget, *_: object) -> ProbeResult:
        if target.served_model_name == "hangs":
            over.wait(20)
        return ILL

    async def story(probing: Prober) -> None:
        hangs = probing.probe(ProbeTarget(1, "hangs"), 1, frozenset())
        assert await probing.probe(ProbeTarget(1, "other"), 1, frozenset({7})) is ILL
        assert not hangs.done()
        over.set()
        await hangs

    probing(story, probe)


def test_after_a_failed_batch_probe_all_workers_are_probed_individually() -> None:
    """No probe waits for ever, and the worker on which it failed does not affect others."""

    async def story(probing: Prober) -> None:
        odd = probing.probe(ProbeTarget(1, "odd", api_key="\N{SNOWMAN}"), 1, frozenset({7}))
        other = probing.probe(ProbeTarget(1, "other"), 1, frozenset({8}))
        assert await asyncio.gather(odd, other) == [ILL, ILL]

    probing(story, lambda *_: ILL)


@pytest.mark.parametrize("error", [ValueError("odd"), MemoryError(), RecursionError()])
def test_a_probe_that_raises_is_undecided_and_names_the_error(error: Exception) -> None:
    def probe(*_: object) -> ProbeResult:
        raise error

    async def story(probing: Prober) -> None:
        result = await probing.probe(ProbeTarget(1, "odd"), 1, frozenset())
        assert result.health is Health.UNDECIDED
        assert type(error).__name__ in result.why

    probing(story, probe)


def test_without_a_thread_probes_are_undecided_and_later_ones_are_made() -> None:
    async def story(probing: Prober) -> None:
        def both() -> list[asyncio.Future[ProbeResult]]:
            return [
                probing.probe(ProbeTarget(1, "new"), 1, frozenset()),
                probing.probe(ProbeTarget(1, "old"), 2, frozenset({7})),
            ]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            refused = await asyncio.gather(*both())
        assert {result.health for result in refused} == {Health.UNDECIDED}
        assert "the system has no thread left" in refused[0].why
        assert await asyncio.gather(*both()) == [ILL, ILL]

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    probing(story, lambda *_: ILL)


def test_a_probe_that_never_returns_is_undecided_after_its_deadline() -> None:
    over = threading.Event()

    def probe(*_: object) -> ProbeResult:
        over.wait(20)
        return ILL

    async def story(probing: Prober) -> None:
        stuck = await probing.probe(ProbeTarget(1, "stuck"), 1, frozenset())
        assert (stuck.health, stuck.why) == (
            Health.UNDECIDED,
            "the probe itself failed: it took too long",
        )
        over.set()

    probing(story, probe, seconds=0.1)


def test_a_failure_reported_much_too_late_is_undecided() -> None:
    """As after the daemon itself was suspended."""
    asked = threading.Event()
    proceed = threading.Event()

    def probe(*_: object) -> ProbeResult:
        asked.set()
        proceed.wait(20)
        return ILL

    async def story(probing: Prober) -> None:
        loop = asyncio.get_running_loop()
        waiting = probing.probe(ProbeTarget(1, "w"), 1, frozenset())
        assert asked.wait(20)
        proceed.set()
        until = loop.time() + 0.5
        while loop.time() < until:  # the loop itself has no time, and the result lies there
            pass
        assert (await waiting).health is Health.UNDECIDED

    probing(story, probe, seconds=0.1)


def test_a_probe_uses_the_timeout_of_its_worker() -> None:
    asked: list[float] = []

    def probe(
        _target: ProbeTarget, _session: int, seconds: float, _: frozenset[int]
    ) -> ProbeResult:
        asked.append(seconds)
        return ILL

    async def story(probing: Prober) -> None:
        await probing.probe(ProbeTarget(1, "slow", timeout_seconds=4.5), 1, frozenset())
        await probing.probe(ProbeTarget(1, "usual"), 1, frozenset())

    probing(story, probe)

    assert asked == [4.5, 10.0]
