from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disagg_cluster.telemetry.pages.label_values import PER_ENGINE
from disagg_cluster.telemetry.pages.page_scraper import OTHER_VERSION, PageScraper
from disagg_exporter.engine_pages.window import EngineWindow, window
from disagg_exporter.http.client.exchange import ResponseParser
from disagg_exporter.model import EnginePage, Total
from support.children import descriptors
from support.collected import is_collected_in_json
from support.page_server import NoPage, page_server
from support.raw_server import raw_server

PAGE = (
    b'vllm:num_requests_running{model_name="m"} 3\nvllm:generation_tokens_total{model_name="m"} 5\n'
)
DATA = Path(__file__).parents[4] / "data"
Answer = Callable[[str], bytes]
"""What is at `http://a/...` and `http://b/...`."""


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[dict[str, str]]:
    """Serve two engines; yield the roots of their servers."""
    with contextlib.ExitStack() as stack:

        def served(name: str) -> str:
            return stack.enter_context(page_server(lambda path: answer(f"http://{name}{path}")))

        yield {"a": served("a"), "b": served("b")}


def nothing(_engine: str, _page: bytes) -> tuple[str, ...]:
    return ()


def watch(
    answer: Answer,
    until: Callable[[PageScraper], bool],
    keep_lines: Callable[[str, bytes], tuple[str, ...]] = nothing,
    over: Callable[[], None] = lambda: None,
) -> PageScraper:
    """Scrape two engines until a condition on the scraper holds."""

    async def story(bases: dict[str, str]) -> PageScraper:
        pages = PageScraper(lambda: bases, 0.05, lambda _engine: True, keep_lines=keep_lines)
        task = asyncio.create_task(pages.run())
        async with asyncio.timeout(20):
            while not until(pages):
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return pages

    with serving(answer) as bases:
        try:
            return asyncio.run(story(bases))
        finally:
            over()


def successes(pages: PageScraper) -> dict[str, bool]:
    return {status.collector: status.success for status in pages.statuses()}


def answering(url: str) -> bytes:
    return json.dumps({"version": "0.32.0"}).encode() if url.endswith("/version") else PAGE


def test_a_valid_page_is_available_with_version_and_window() -> None:
    pages = watch(
        answering, lambda p: p.state("a").window is not None and p.state("b").window is not None
    )

    page = pages.page("a")
    assert page is not None
    assert page.running == 3
    assert pages.state("a").version == "0.32.0"
    assert successes(pages) == {"engine:a": True, "engine:b": True}


def test_an_invalid_page_is_absent_and_fails_its_collector() -> None:
    def answer(url: str) -> bytes:
        return b"<html>hello" if url == "http://a/metrics" else answering(url)

    pages = watch(answer, lambda p: len(p.statuses()) == 2 and p.page("b") is not None)

    assert pages.page("a") is None
    assert successes(pages) == {"engine:a": False, "engine:b": True}


def test_a_frontend_among_the_engines_is_told_where_it_belongs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    front = (DATA / "frontend-dynamo-1.6.1" / "frontend.prom").read_bytes()
    watch(
        lambda url: front if url == "http://a/metrics" else answering(url),
        lambda pages: "metrics page: " in caplog.text and pages.page("b") is not None,
    )

    assert (
        "the page of a frontend or router, not of an engine: name its address under" in caplog.text
    )


def test_a_version_response_nested_too_deep_is_ignored() -> None:
    def answer(url: str) -> bytes:
        return b"[" * 100_000 if url == "http://a/version" else answering(url)

    def watched() -> None:
        pages = watch(answer, lambda p: p.page("a") is not None and p.page("b") is not None)
        assert (pages.state("a").version, pages.state("b").version) == ("", "0.32.0")
        assert successes(pages) == {"engine:a": True, "engine:b": True}

    # At its depth nothing can be finalized.
    assert not is_collected_in_json(watched)


def test_an_unexpected_error_in_one_page_fails_only_its_collector() -> None:
    def keep_lines(engine: str, _page: bytes) -> tuple[str, ...]:
        if engine == "a":
            raise ZeroDivisionError
        return ("x",)

    pages = watch(
        answering,
        lambda p: p.state("a").status is not None and p.state("b").window is not None,
        keep_lines,
    )

    assert pages.page("a") is None
    assert pages.state("b").lines == ("x",)
    assert successes(pages) == {"engine:a": False, "engine:b": True}


def test_an_engine_that_never_answers_delays_no_other() -> None:
    asked, hung = threading.Event(), threading.Event()

    def answer(url: str) -> bytes:
        if url == "http://a/metrics":
            asked.set()
            hung.wait(20)
            raise NoPage
        return answering(url)

    def until(pages: PageScraper) -> bool:
        return asked.is_set() and pages.state("b").window is not None

    pages = watch(answer, until, over=hung.set)

    assert pages.page("a") is None
    assert successes(pages) == {"engine:b": True}


def test_after_a_failed_scrape_the_page_is_absent_and_not_kept() -> None:
    broken = threading.Event()

    def answer(url: str) -> bytes:
        if broken.is_set() and url == "http://a/metrics":
            raise NoPage
        return answering(url)

    def until(pages: PageScraper) -> bool:
        if pages.page("a") is not None:
            broken.set()
        return successes(pages).get("engine:a") is False

    pages = watch(answer, until)

    assert pages.page("a") is None
    assert pages.state("a").window is None
    [status] = [s for s in pages.statuses() if s.collector == "engine:a"]
    assert status.last_success_timestamp_seconds is not None


def test_an_engine_without_a_version_endpoint_is_scraped() -> None:
    def answer(url: str) -> bytes:
        if url.endswith("/version"):
            raise NoPage
        return answering(url)

    pages = watch(answer, lambda p: p.page("a") is not None)

    assert pages.state("a").version == ""


def test_an_engine_without_a_process_is_not_scraped() -> None:
    asked: list[str] = []

    def answer(url: str) -> bytes:
        asked.append(url)
        return PAGE

    async def story(bases: dict[str, str]) -> PageScraper:
        looked_at: list[str] = []

        def running(engine: str) -> bool:
            looked_at.append(engine)
            return False

        pages = PageScraper(lambda: bases, 0.01, running)
        task = asyncio.create_task(pages.run())
        async with asyncio.timeout(20):
            while len(looked_at) < 6:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return pages

    with serving(answer) as bases:
        assert asyncio.run(story(bases)).statuses() == ()
    assert asked == []


# Counts


def counts(value: int) -> bytes:
    return b'vllm:request_success_total{finished_reason="stop"} %d\n' % value


def served(*jobs: bytes | None, running: Callable[[int], bool] = lambda _look: True) -> float:
    """What engine `a` has served after these jobs at its page; None is a scrape that failed."""
    seen = 0

    def answer(url: str) -> bytes:
        nonlocal seen
        if url != "http://a/metrics":
            raise NoPage
        page = jobs[min(seen, len(jobs) - 1)]
        seen += 1
        if page is None:
            raise NoPage
        return page

    async def story(base: str) -> float:
        asked = 0

        def is_running(_engine: str) -> bool:
            nonlocal asked
            asked += 1
            return running(asked)

        pages = PageScraper(lambda: {"a": base}, 0.05, is_running)
        task = asyncio.create_task(pages.run())
        async with asyncio.timeout(20):
            while seen <= len(jobs):
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        counted = pages.state("a").tally.counts
        assert counted is not None
        return counted.totals[Total.FINISHED_REQUESTS]

    with serving(answer) as bases:
        return asyncio.run(story(bases["a"]))


def test_served_requests_are_counted_from_the_first_scrape() -> None:
    assert served(counts(100), counts(103), counts(107)) == 7


def test_a_failed_scrape_loses_no_counts() -> None:
    assert served(counts(100), None, counts(107)) == 7


def test_a_restart_between_two_scrapes_keeps_earlier_counts() -> None:
    assert served(counts(100), counts(110), counts(3)) == 13


def test_a_process_started_after_an_observed_exit_is_counted_from_zero() -> None:
    """Even if it has already served more than its predecessor."""
    assert served(counts(10), counts(20), counts(50), running=lambda job: job != 3) == 60


def test_the_version_of_sglang_is_read_from_server_info() -> None:
    def answer(url: str) -> bytes:
        told = {"http://a/server_info": b'{"version": "0.5.23", "model_path": "m"}'}
        return told.get(url, b'sglang:num_running_reqs{tp_rank="0"} 1\n')

    pages = watch(answer, lambda p: bool(p.state("a").version))

    assert pages.state("a").version == "0.5.23"


def test_scraping_continues_when_the_engine_kind_changes_at_each_scrape() -> None:
    kinds = [b"vllm:num_requests_running 1\n", b"sglang:num_running_reqs 1\n"]
    told: set[str] = set()

    def answer(url: str) -> bytes:
        if url != "http://a/metrics":
            return answering(url)
        kinds.append(kinds.pop(0))
        return kinds[0]

    def until(pages: PageScraper) -> bool:
        page = pages.page("a")
        told.update({page.kind} if page else ())
        return len(told) == 2

    pages = watch(answer, until)

    assert pages.state("a").window is None


def test_added_engines_are_scraped_and_removed_ones_forgotten() -> None:
    async def story(served: dict[str, str]) -> None:
        bases = {"a": served["a"]}
        pages = PageScraper(lambda: bases, 0.05, lambda _engine: True)
        task = asyncio.create_task(pages.run())
        async with asyncio.timeout(20):
            while pages.page("a") is None:
                await asyncio.sleep(0.01)
            bases["b"] = served["b"]
            del bases["a"]
            while pages.page("b") is None or pages.state("a").status is not None:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert pages.page("a") is None
        assert pages.state("a").tally.counts is None
        assert pages.state("a").answered_ns is None
        assert successes(pages) == {"engine:b": True}

    with serving(answering) as served:
        asyncio.run(story(served))


def test_host_names_are_resolved_and_unknown_ones_fail_their_collector() -> None:
    async def story(bases: dict[str, str]) -> PageScraper:
        named = {
            "a": bases["a"].replace("127.0.0.1", "localhost"),
            "b": f"http://{'b' * 64}.invalid",
        }
        pages = PageScraper(lambda: named, 0.05, lambda _engine: True)
        task = asyncio.create_task(pages.run())
        async with asyncio.timeout(20):
            while pages.state("a").window is None or pages.state("b").status is None:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return pages

    with serving(answering) as bases:
        assert successes(asyncio.run(story(bases))) == {"engine:a": True, "engine:b": False}


def test_an_invalid_address_fails_its_collector() -> None:
    async def story() -> PageScraper:
        pages = PageScraper(lambda: {"a": "http://[::1"}, 0.05, lambda _engine: True)
        task = asyncio.create_task(pages.run())
        async with asyncio.timeout(20):
            while pages.state("a").status is None:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return pages

    assert successes(asyncio.run(story())) == {"engine:a": False}


@pytest.mark.parametrize("where", ["/metrics", "/version"])
def test_an_unexpected_error_in_polling_an_engine_fails_only_its_collector(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Poisoned(ResponseParser):
        def feed(self, data: bytes) -> bool:
            if b"poison" in data:
                raise ZeroDivisionError
            return super().feed(data)

    monkeypatch.setattr("disagg_exporter.http.client.page_poller.ResponseParser", Poisoned)

    def answer(url: str) -> bytes:
        return b"poison" if url == f"http://a{where}" else answering(url)

    pages = watch(
        answer,
        lambda pages: (
            pages.state("b").window is not None
            and any(status.unexpected_failures > 1 for status in pages.statuses())
        ),
    )

    assert successes(pages) == {"engine:a": False, "engine:b": True}


def test_a_connection_is_not_reused_after_its_process_has_ended() -> None:
    """The peer of the old connection is not the next process on the same port."""
    runs = threading.Event()

    def keep(connection: socket.socket, over: threading.Event) -> None:
        connection.settimeout(0.02)
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(PAGE), PAGE)
        connection.sendall(answer)
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                if not connection.recv(65536):
                    return
                connection.sendall(answer)

    async def story(base: str) -> None:
        pages = PageScraper(lambda: {"a": base}, 0.05, lambda _engine: runs.is_set())
        task = asyncio.create_task(pages.run())
        async with asyncio.timeout(20):
            for is_running in (True, False, True):
                (runs.set if is_running else runs.clear)()
                while (pages.page("a") is not None) is not is_running:
                    await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with raw_server(keep) as (base, heads):
        asyncio.run(story(base))

    assert len(heads) == 2


def test_versions_of_an_engine_beyond_the_limit_are_shown_as_other() -> None:
    asked, shown = 0, set[str]()

    def answer(url: str) -> bytes:
        nonlocal asked
        if not url.startswith("http://a/"):
            return answering(url)
        asked += 1
        if url == "http://a/version":
            return json.dumps({"version": f"1.{asked}"}).encode()
        # Pages fail in between, so that the version is requested again.
        return PAGE if asked % 3 else b"<html>"

    def until(pages: PageScraper) -> bool:
        shown.add(pages.state("a").version or "")
        return asked > 60

    watch(answer, until)

    assert OTHER_VERSION in shown
    assert len(shown - {"", OTHER_VERSION}) <= PER_ENGINE


def test_an_unexpected_error_in_a_window_is_counted_and_the_window_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tripped = 0

    def trip(before: EnginePage, after: EnginePage) -> EngineWindow:
        nonlocal tripped
        tripped += 1
        if tripped <= 2:
            raise ValueError("a bug of ours")
        return window(before, after)

    monkeypatch.setattr("disagg_cluster.telemetry.pages.page_state.window", trip)
    seen_failing = False

    def until(pages: PageScraper) -> bool:
        nonlocal seen_failing
        seen_failing = seen_failing or False in successes(pages).values()
        return tripped > 2 and all(pages.state(engine).window is not None for engine in ("a", "b"))

    pages = watch(answering, until)

    assert seen_failing
    assert successes(pages) == {"engine:a": True, "engine:b": True}
    assert sum(status.unexpected_failures for status in pages.statuses()) == 2


def test_scraping_can_start_after_earlier_attempts_got_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Failed starts leave no descriptor open."""
    refuse = threading.Event()
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if refuse.is_set() and thread.name.startswith("page"):
            raise RuntimeError("can't start new thread")
        start(thread)

    async def story(bases: dict[str, str]) -> None:
        pages = PageScraper(lambda: bases, 0.05, lambda _engine: True)
        refuse.set()
        monkeypatch.setattr(threading.Thread, "start", refused)
        before = descriptors()
        for _ in range(3):
            with pytest.raises(RuntimeError):
                await pages.run()
        assert descriptors() == before
        refuse.clear()
        task = asyncio.create_task(pages.run())
        async with asyncio.timeout(20):
            while pages.page("a") is None:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with serving(answering) as bases:
        asyncio.run(story(bases))
