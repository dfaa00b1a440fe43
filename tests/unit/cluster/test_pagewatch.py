from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable

from disagg_cluster.pagewatch import PageWatch
from disagg_exporter.scrape import EngineUnreachable

PAGE = (
    b'vllm:num_requests_running{model_name="m"} 3\nvllm:generation_tokens_total{model_name="m"} 5\n'
)
BASES = {"a": "http://a", "b": "http://b"}


def watch(fetch: Callable[[str, float], bytes], until: Callable[[PageWatch], bool]) -> PageWatch:
    """Watch two engines until something is true of what is known of them."""

    async def story() -> PageWatch:
        pages = PageWatch(BASES, 0.05, lambda _engine: True, fetch=fetch)
        task = asyncio.create_task(pages.run())
        async with asyncio.timeout(20):
            while not until(pages):
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return pages

    return asyncio.run(story())


def successes(pages: PageWatch) -> dict[str, bool]:
    return {status.collector: status.success for status in pages.statuses()}


def answering(url: str, _deadline: float) -> bytes:
    return json.dumps({"version": "0.32.0"}).encode() if url.endswith("/version") else PAGE


def test_a_readable_page_is_known_with_its_version_and_window() -> None:
    pages = watch(answering, lambda p: p.window("a") is not None and p.window("b") is not None)

    page = pages.page("a")
    assert page is not None
    assert page.running == 3
    assert pages.version("a") == "0.32.0"
    assert successes(pages) == {"engine:a": True, "engine:b": True}


def test_a_page_of_garbage_is_a_failed_collector_and_no_page() -> None:
    def fetch(url: str, deadline: float) -> bytes:
        return b"<html>hello" if url == "http://a/metrics" else answering(url, deadline)

    pages = watch(fetch, lambda p: len(p.statuses()) == 2 and p.page("b") is not None)

    assert pages.page("a") is None
    assert successes(pages) == {"engine:a": False, "engine:b": True}


def test_an_engine_that_never_answers_delays_no_other() -> None:
    asked, hung = threading.Event(), threading.Event()

    def fetch(url: str, deadline: float) -> bytes:
        if url == "http://a/metrics":
            asked.set()
            hung.wait(20)
            raise EngineUnreachable("no whole answer")
        return answering(url, deadline)

    def until(pages: PageWatch) -> bool:
        return asked.is_set() and pages.window("b") is not None

    try:
        pages = watch(fetch, until)
    finally:
        hung.set()

    assert pages.page("a") is None
    assert successes(pages) == {"engine:b": True}


def test_a_page_that_is_lost_is_absent_not_frozen() -> None:
    broken = threading.Event()

    def fetch(url: str, deadline: float) -> bytes:
        if broken.is_set() and url == "http://a/metrics":
            raise EngineUnreachable("refused")
        return answering(url, deadline)

    def until(pages: PageWatch) -> bool:
        if pages.page("a") is not None:
            broken.set()
        return successes(pages).get("engine:a") is False

    pages = watch(fetch, until)

    assert pages.page("a") is None
    assert pages.window("a") is None
    [status] = [s for s in pages.statuses() if s.collector == "engine:a"]
    assert status.last_success_timestamp_seconds is not None


def test_a_server_without_a_version_is_an_engine_all_the_same() -> None:
    def fetch(url: str, deadline: float) -> bytes:
        if url.endswith("/version"):
            raise EngineUnreachable("answers 404 instead of 200")
        return answering(url, deadline)

    pages = watch(fetch, lambda p: p.page("a") is not None)

    assert pages.version("a") == ""


def test_an_engine_without_a_process_is_not_asked() -> None:
    def fetch(url: str, _deadline: float) -> bytes:
        raise AssertionError(f"asked {url}")

    async def story() -> PageWatch:
        pages = PageWatch(BASES, 0.01, lambda _engine: False, fetch=fetch)
        task = asyncio.create_task(pages.run())
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return pages

    assert asyncio.run(story()).statuses() == ()
