import pytest

from disagg_exporter.http.server.routes import Response, Site, wants_gzip
from disagg_exporter.landing.history import AccountHistory
from disagg_exporter.landing.page import Landing
from disagg_exporter.metrics.page_cache import PageCache
from disagg_exporter.metrics.render import rows_of
from support.snapshots import TAKEN_NS, golden_snapshot


def ask(
    target: str, method: str = "GET", why_not_ready: str = "", age_seconds: float = 0
) -> Response:
    pages = PageCache(golden_snapshot, rows_of, lambda: TAKEN_NS)
    landing = Landing("gpu-7", golden_snapshot, AccountHistory(), lambda: TAKEN_NS)
    site = Site(pages, landing, lambda: why_not_ready, lambda: age_seconds, dead_seconds=10.0)
    return site.answer(method, target, "", "")


@pytest.mark.parametrize("target", ["/metrics", "/metrics?name=x"])
def test_metrics_is_the_page(target: str) -> None:
    answer = ask(target)

    assert (answer.status, answer.content_type[:25]) == (200, "text/plain; version=0.0.4")
    assert b"disagg_build_info" in answer.body


def test_a_daemon_whose_loop_turned_recently_is_alive() -> None:
    assert (ask("/healthz", age_seconds=10.0).status, ask("/healthz").body) == (200, b"ok\n")


def test_a_daemon_whose_loop_hangs_is_not_alive() -> None:
    answer = ask("/healthz", age_seconds=10.5)

    assert (answer.status, answer.body) == (503, b"the daemon's loop last came round 10.5 s ago\n")


def test_liveness_does_not_depend_on_readiness() -> None:
    """Nor on engines: a dead engine must not have the exporter restarted."""
    assert ask("/healthz", why_not_ready="nothing measured yet").status == 200


def test_readiness_says_what_is_missing() -> None:
    assert ask("/readyz").status == 200

    answer = ask("/readyz", why_not_ready="nothing measured yet")
    assert (answer.status, answer.body) == (503, b"nothing measured yet\n")


def test_the_landing_page_links_the_endpoints_and_escapes_text() -> None:
    body = ask("/", why_not_ready="<b>").body.decode()

    assert all(f'href="{path}"' in body for path in ("/metrics", "/healthz", "/readyz"))
    assert "(no: &lt;b&gt;)" in body


@pytest.mark.parametrize(
    ("target", "kind"),
    [("/", "text/html"), ("/landing.css", "text/css"), ("/landing.js", "text/javascript")],
)
def test_the_landing_page_and_its_parts_may_load_nothing_from_elsewhere(
    target: str, kind: str
) -> None:
    answer = ask(target)
    policy = dict(answer.headers)["Content-Security-Policy"]

    assert (answer.status, answer.content_type) == (200, f"{kind}; charset=utf-8")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert dict(answer.headers)["X-Content-Type-Options"] == "nosniff"
    assert b"http://" not in answer.body
    assert b"https://" not in answer.body


@pytest.mark.parametrize("target", ["/metric", "/metrics/", "//metrics", "*", "", "/%6detrics"])
def test_anything_else_is_not_found(target: str) -> None:
    assert ask(target).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_reading_is_allowed(method: str) -> None:
    answer = ask("/metrics", method=method)

    assert (answer.status, answer.headers) == (405, (("Allow", "GET, HEAD"),))


@pytest.mark.parametrize(
    ("accept_encoding", "expected"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("xgzip", False),
    ],
)
def test_gzip_is_used_only_if_the_client_accepts_it(accept_encoding: str, expected: bool) -> None:
    assert wants_gzip(accept_encoding) is expected
