from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable

from disagg_cluster.pagewatch import PageWatch
from disagg_exporter.model import Total
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


def test_a_version_nested_too_deep_is_no_version() -> None:
    def fetch(url: str, deadline: float) -> bytes:
        return b"[" * 100_000 if url == "http://a/version" else answering(url, deadline)

    pages = watch(fetch, lambda p: p.page("a") is not None and p.page("b") is not None)

    assert (pages.version("a"), pages.version("b")) == ("", "0.32.0")
    assert successes(pages) == {"engine:a": True, "engine:b": True}


def test_an_unforeseen_error_over_one_page_is_a_failed_collector_and_hurts_no_other() -> None:
    def fetch(url: str, deadline: float) -> bytes:
        if url == "http://a/metrics":
            raise ZeroDivisionError
        return answering(url, deadline)

    pages = watch(fetch, lambda p: p.status("a") is not None and p.window("b") is not None)

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


# Counts


def counts(value: int) -> bytes:
    return b'vllm:request_success_total{finished_reason="stop"} %d\n' % value


def served(*looks: bytes | None, running: Callable[[int], bool] = lambda _look: True) -> float:
    """What engine `a` has served after these looks at its page; None is a look that failed."""
    seen = 0

    def fetch(url: str, _deadline: float) -> bytes:
        nonlocal seen
        if url != "http://a/metrics":
            raise EngineUnreachable("nothing there")
        page = looks[min(seen, len(looks) - 1)]
        seen += 1
        if page is None:
            raise EngineUnreachable("no whole answer")
        return page

    async def story() -> float:
        asked = 0

        def is_running(_engine: str) -> bool:
            nonlocal asked
            asked += 1
            return running(asked)

        pages = PageWatch({"a": "http://a"}, 0.05, is_running, fetch=fetch)
        task = asyncio.create_task(pages.run())
        async with asyncio.timeout(20):
            while seen <= len(looks):
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        serving = pages.serving("a")
        assert serving is not None
        return serving.totals[Total.FINISHED_REQUESTS]

    return asyncio.run(story())


def test_what_an_engine_served_is_counted_from_the_first_look_on() -> None:
    assert served(counts(100), counts(103), counts(107)) == 7


def test_a_look_that_failed_loses_no_count() -> None:
    assert served(counts(100), None, counts(107)) == 7


def test_a_restart_between_two_looks_takes_nothing_away() -> None:
    assert served(counts(100), counts(110), counts(3)) == 13


def test_the_process_after_one_that_was_seen_to_end_is_counted_from_zero() -> None:
    """Also one that has served more already than the one before it ever did."""
    assert served(counts(10), counts(20), counts(50), running=lambda look: look != 3) == 60


def test_sglang_tells_its_version_elsewhere() -> None:
    def fetch(url: str, _deadline: float) -> bytes:
        told = {"http://a/server_info": b'{"version": "0.5.23", "model_path": "m"}'}
        return told.get(url, b'sglang:num_running_reqs{tp_rank="0"} 1\n')

    pages = watch(fetch, lambda p: bool(p.version("a")))

    assert pages.version("a") == "0.5.23"


def test_an_engine_that_answers_as_another_kind_each_time_is_no_end_of_the_watch() -> None:
    kinds = [b"vllm:num_requests_running 1\n", b"sglang:num_running_reqs 1\n"]
    told: set[str] = set()

    def fetch(url: str, deadline: float) -> bytes:
        if url != "http://a/metrics":
            return answering(url, deadline)
        kinds.append(kinds.pop(0))
        return kinds[0]

    def until(pages: PageWatch) -> bool:
        page = pages.page("a")
        told.update({page.kind} if page else ())
        return len(told) == 2

    pages = watch(fetch, until)

    assert pages.window("a") is None


def test_engines_that_come_and_go_are_followed_and_forgotten() -> None:
    bases = {"a": "http://a"}

    async def story() -> None:
        pages = PageWatch(bases, 0.05, lambda _engine: True, fetch=answering)
        task = asyncio.create_task(pages.run())
        async with asyncio.timeout(20):
            while pages.page("a") is None:
                await asyncio.sleep(0.01)
            bases["b"] = "http://b"
            del bases["a"]
            while pages.page("b") is None or pages.status("a") is not None:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert pages.page("a") is None
        assert pages.serving("a") is None
        assert pages.answered_ns("a") is None
        assert successes(pages) == {"engine:b": True}

    asyncio.run(story())
