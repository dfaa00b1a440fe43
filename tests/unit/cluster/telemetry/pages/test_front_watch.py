from __future__ import annotations

import asyncio

import pytest

from disagg_cluster.config import Frontend
from disagg_cluster.telemetry.pages.front_watch import FIRST_PAGES, FrontWatch
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import CollectorStatus, RequestSource, Total

ScrapeResult = bytes | DisaggError


def page(started: int, model: str = "m") -> bytes:
    """The page of a frontend that has started and answered so many requests."""
    counts = (model.encode(), started, model.encode(), started)
    return (
        b'dynamo_frontend_requests_started_total{model="%s"} %d\n'
        b'dynamo_frontend_requests_total{model="%s",status="success"} %d\n' % counts
    )


def watched(*looks: ScrapeResult, namespace: str = "") -> FrontWatch:
    """The watch of one frontend after scrapes of the first page, and of these."""
    first = [look for look in looks if isinstance(look, bytes)][:1]
    told, over = [*first * (FIRST_PAGES - 1), *looks], asyncio.Event()

    def fetch(url: str, _deadline: float) -> bytes:
        assert url == "http://10.0.0.7:8000/metrics"
        if not told:
            loop.call_soon_threadsafe(over.set)
            return looks[-1] if isinstance(looks[-1], bytes) else b""
        look = told.pop(0)
        if isinstance(look, DisaggError):
            raise look
        return look

    frontend = Frontend(url="http://10.0.0.7:8000", namespace=namespace)
    watch = FrontWatch((frontend,), 0.001, fetch=fetch)

    async def look_at_all() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(watch.run())
        async with asyncio.timeout(20):
            await over.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    loop: asyncio.AbstractEventLoop
    asyncio.run(look_at_all())
    return watch


def arrived(watch: FrontWatch, model: str = "m") -> float:
    [counts] = watch.counts()
    return counts.by_model[model].totals[Total.ARRIVED_REQUESTS]


def status(watch: FrontWatch) -> CollectorStatus:
    [status] = watch.collectors()
    return status


def test_a_frontend_is_counted_from_the_first_scrape_and_across_restarts() -> None:
    watch = watched(page(100), page(103), page(2), page(7))

    [counts] = watch.counts()
    assert (counts.source, counts.name) == (RequestSource.FRONTEND, "10.0.0.7:8000")
    assert arrived(watch) == 3 + 5
    assert status(watch).collector == "frontend:10.0.0.7:8000"
    assert status(watch).success


def test_a_model_that_appears_later_is_counted_from_its_first_request() -> None:
    watch = watched(page(100), page(100) + page(3, "new"), page(101) + page(5, "new"))

    assert (arrived(watch), arrived(watch, "new")) == (1, 5)


@pytest.mark.parametrize(
    "look", [DisaggError("nobody answers"), b"<html>\n", b"vllm:num_requests_running 1\n"]
)
def test_a_failed_scrape_loses_no_counts(look: ScrapeResult) -> None:
    watch = watched(page(100), look, page(104), look)

    assert arrived(watch) == 4


def test_alternating_replicas_at_one_address_fail_the_collector() -> None:
    watch = watched(page(100), page(7), page(101), page(8), page(102))

    assert arrived(watch) == 2 + 1
    assert not status(watch).success


def test_counts_have_the_namespace_of_the_node_file() -> None:
    [counts] = watched(page(1), namespace="serving").counts()

    assert counts.namespace == "serving"


def test_without_frontends_there_are_no_counts_and_no_collectors() -> None:
    watch = FrontWatch((), 1.0)

    assert (watch.counts(), watch.collectors()) == ((), ())


def test_a_frontend_scraped_every_two_minutes_is_not_stale_in_between() -> None:
    now_ns, read = 0, asyncio.Event()

    def fetch(_url: str, _deadline: float) -> bytes:
        loop.call_soon_threadsafe(read.set)
        return page(3)

    async def look_once() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            running = asyncio.create_task(watch.run())
            await read.wait()
            while not watch.counts()[0].by_model:
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    loop: asyncio.AbstractEventLoop
    frontends = (Frontend(url="http://10.0.0.7:8000"),)
    watch = FrontWatch(frontends, 120.0, fetch=fetch, clock_ns=lambda: now_ns)
    asyncio.run(look_once())
    stale = []
    for seconds in (0, 121, 361):
        now_ns = seconds * 1_000_000_000
        stale += [each.is_stale for each in watch.counts()]

    assert stale == [False, False, True]
