import dataclasses
import gzip
import threading
from dataclasses import dataclass, field

import pytest

from disagg_exporter.metrics.page_cache import PageBytes, PageCache
from disagg_exporter.metrics.render import rows_of
from disagg_exporter.model import Snapshot
from support.snapshots import FRESH_UNTIL_NS, SECOND, TAKEN_NS, golden_snapshot

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@dataclass
class Daemon:
    """Has a clock and a latest snapshot, both set by a test, and counts how often it is asked."""

    now_ns: int = TAKEN_NS
    snapshot: Snapshot | None = field(default_factory=golden_snapshot)

    def cache(self) -> PageCache[Snapshot]:
        return PageCache(lambda: self.snapshot, rows_of, lambda: self.now_ns)

    def takes_another(self, after_ns: int) -> None:
        self.now_ns += after_ns
        self.snapshot = dataclasses.replace(golden_snapshot(), busy_window_seconds=2.0)


def plain(cache: PageCache[Snapshot]) -> PageBytes:
    return cache.page("", gzipped=False)


def test_an_unchanged_snapshot_is_rendered_once() -> None:
    daemon = Daemon()
    cache = daemon.cache()
    first = plain(cache)

    daemon.now_ns += 9 * SECOND

    assert plain(cache) is first


def test_a_changed_snapshot_is_rendered_at_most_five_times_a_second() -> None:
    daemon = Daemon()
    cache = daemon.cache()
    first = plain(cache)

    daemon.takes_another(after_ns=SECOND // 5 - 1)
    soon = plain(cache)
    daemon.now_ns += 1
    later = plain(cache)

    assert soon is first
    assert b"disagg_node_busy_window_seconds 1.0" in first.body
    assert b"disagg_node_busy_window_seconds 2.0" in later.body


def test_a_snapshot_that_became_stale_is_rendered_again() -> None:
    """Otherwise a dead sampler would show as frozen numbers."""
    daemon = Daemon()
    cache = daemon.cache()
    fresh = plain(cache)

    daemon.now_ns = FRESH_UNTIL_NS + 1

    assert b"disagg_gpu_" in fresh.body
    assert b"disagg_gpu_" not in plain(cache).body


def test_before_the_first_snapshot_there_is_a_page() -> None:
    assert b"disagg_build_info" in plain(Daemon(snapshot=None).cache()).body


def test_gzip_is_the_same_page_smaller() -> None:
    cache = Daemon().cache()

    packed = cache.page("", gzipped=True)

    assert packed.gzipped
    assert gzip.decompress(packed.body) == plain(cache).body
    assert len(packed.body) < len(plain(cache).body) / 3


def test_openmetrics_is_served_on_request() -> None:
    page = Daemon().cache().page(OPENMETRICS, gzipped=False)

    assert page.content_type.startswith("application/openmetrics-text; version=1.0.0;")
    assert page.body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "text/plain;version=0.0.4",
        "text/html",
        ";;,,=",
        # All of these make the client library fail, or promise a version that does not exist.
        "application/openmetrics-text;version=abc",
        'application/openmetrics-text;version="1.0.0"',
        "application/openmetrics-text;version=99.0.0",
        "application/openmetrics-text;version=1.0.\r\n 0",
        "text/plain;version=1.x",
    ],
)
def test_other_clients_get_plain_text(accept: str) -> None:
    cache = Daemon().cache()

    assert cache.page(accept, gzipped=False) == plain(cache)
    assert plain(cache).content_type == "text/plain; version=0.0.4; charset=utf-8"


def test_concurrent_requests_share_one_rendering() -> None:
    cache = Daemon().cache()
    together = threading.Barrier(8)
    pages: list[PageBytes] = []

    def ask() -> None:
        together.wait()
        pages.append(plain(cache))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({id(page) for page in pages}) == 1
