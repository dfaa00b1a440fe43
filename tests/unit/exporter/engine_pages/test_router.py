from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_exporter.engine_pages.exposition.layout import MAX_LINE_BYTES
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.router import count_on, parse_router_page
from disagg_exporter.model import Phase, RouterCounts, RouterPage

CAPTURED = Path(__file__).parents[3] / "data" / "vllm-router-0.1.17" / "router.prom"
PREFILL, DECODE = "http://127.0.0.1:28611", "http://127.0.0.1:28621"
FAILED = (Phase.PREFILL, PREFILL)


def page(*lines: str) -> RouterPage:
    return parse_router_page(("\n".join(lines) + "\n").encode(), 7)


def test_the_captured_page_shows_requests_without_errors() -> None:
    """vllm-router 0.1.17 after 121 requests to a real NIXL pair."""
    assert parse_router_page(CAPTURED.read_bytes(), 7) == RouterPage(
        t_ns=7,
        totals=RouterCounts(121.0, {}),
        active={Phase.PREFILL: 0.0, Phase.DECODE: 0.0},
        pending=0.0,
        worker_health={DECODE: True, PREFILL: True},
        pending_by_engine={DECODE: 0.0},
    )


def test_errors_and_health_are_read_per_engine() -> None:
    read = page(
        f'vllm_router_pd_prefill_errors_total{{worker="{PREFILL}"}} 3',
        f'vllm_router_pd_decode_errors_total{{worker="{DECODE}"}} 10',
        f'vllm_router_worker_health{{worker="{PREFILL}"}} 0',
        f'vllm_router_worker_health{{worker="{DECODE}"}} 1',
    )

    assert read.totals == RouterCounts(
        0.0, {(Phase.PREFILL, PREFILL): 3.0, (Phase.DECODE, DECODE): 10.0}
    )
    assert read.worker_health == {PREFILL: False, DECODE: True}


def test_requests_of_all_routes_and_engines_are_summed() -> None:
    read = page(
        'vllm_router_pd_requests_total{route="/v1/completions"} 2',
        'vllm_router_pd_requests_total{route="/v1/chat/completions"} 3',
        'vllm_router_pd_prefill_occupancy{worker="http://a:1",rank="aggregate"} 20',
        'vllm_router_pd_prefill_occupancy{worker="http://b:1",rank="aggregate"} 19',
        'vllm_router_pd_pending_decode_requests{worker="http://c:1",rank="aggregate"} 38',
        'vllm_router_pd_active_decode_requests{worker="http://c:1",rank="aggregate"} 2',
    )

    assert read.totals.requests == 5.0
    assert read.active == {Phase.PREFILL: 39.0, Phase.DECODE: 2.0}
    assert read.pending == 38.0


def test_ranks_are_summed_once() -> None:
    """The router's own sum over the ranks stands beside them, where it gives one."""
    read = page(
        'vllm_router_pd_active_decode_requests{worker="http://a:1",rank="0"} 4',
        'vllm_router_pd_active_decode_requests{worker="http://a:1",rank="1"} 5',
        'vllm_router_pd_active_decode_requests{worker="http://a:1",rank="aggregate"} 9',
        'vllm_router_pd_active_decode_requests{worker="http://b:1",rank="0"} 1',
        'vllm_router_pd_active_decode_requests{worker="http://b:1",rank="1"} 2',
    )

    assert read.active == {Phase.DECODE: 12.0}


@pytest.mark.parametrize("text", [b"", b"\n", b"# TYPE vllm_router_worker_health gauge\n"])
def test_a_router_without_a_request_gives_an_empty_page(text: bytes) -> None:
    assert parse_router_page(text, 7) == RouterPage(7)


def test_a_gauge_that_is_no_number_is_absent() -> None:
    assert page('vllm_router_pd_pending_decode_requests{worker="a"} NaN').pending is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"vllm:num_requests_running 3\n", "no series of vllm-router"),
        (b"<html>\n", "no series of vllm-router"),
        (b"vllm_router_pd_requests_total 1\nvllm_router_pd_requ", "cut off"),
        (b"vllm_router_pd_requests_total NaN\n", "not a valid count"),
        (b"vllm_router_pd_requests_total -1\n", "not a valid count"),
        (b'vllm_router_pd_requests_total{route="\xff"} 1\n', "not UTF-8"),
        (b"vllm_router_pd_requests_total{route= 1\n", "cannot be read"),
        (b"vllm_router_pd_requests_total " + b"1" * MAX_LINE_BYTES + b"\n", "a line is longer"),
    ],
)
def test_an_implausible_page_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(PageError, match=why):
        parse_router_page(text, 7)


NOISE = st.binary(max_size=60) | st.text('{}="worker, 01.-+eN\\\n', max_size=60).map(str.encode)


@given(NOISE)
def test_any_bytes_after_a_name_are_read_for_that_name_or_refused(noise: bytes) -> None:
    with contextlib.suppress(PageError):
        read = parse_router_page(b"vllm_router_worker_health" + noise + b"\n", 7)
        assert replace(read, worker_health={}) == RouterPage(7)
        assert len(read.worker_health) <= 1


def totals(requests: float, errors: float | None = None) -> RouterPage:
    return RouterPage(0, RouterCounts(requests, {} if errors is None else {FAILED: errors}))


def test_counting_starts_after_the_first_page() -> None:
    """Counts of an adopted router from before its adoption are left out."""
    counts = count_on(None, None, totals(1000, 5))
    assert counts == RouterCounts()

    counts = count_on(counts, totals(1000, 5), totals(1010, 6))

    assert counts == RouterCounts(10.0, {FAILED: 1.0})


def test_no_counter_falls_when_the_router_restarts() -> None:
    counts = RouterCounts(10.0, {FAILED: 4.0})

    assert count_on(counts, totals(50, 4), totals(3)) == RouterCounts(13.0, {FAILED: 4.0})
    assert count_on(counts, None, totals(60, 1)) == RouterCounts(70.0, {FAILED: 5.0})


def test_one_decreased_counter_means_a_reset_of_all() -> None:
    counts = RouterCounts(10.0, {FAILED: 4.0})

    assert count_on(counts, totals(50, 4), totals(60, 1)).requests == 70.0


COUNTS = st.builds(
    RouterCounts,
    st.integers(0, 100).map(float),
    st.dictionaries(
        st.sampled_from([FAILED, (Phase.DECODE, DECODE)]), st.integers(0, 100).map(float)
    ),
)


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.one_of(st.none(), COUNTS), min_size=1))
def test_counters_never_fall_for_any_pages(pages: list[RouterCounts | None]) -> None:
    counts: RouterCounts | None = None
    before: RouterPage | None = None
    for totals in pages:
        if totals is None:
            before = None
            continue
        after = RouterPage(0, totals)
        new = count_on(counts, before, after)
        if counts is not None:
            assert new.requests >= counts.requests
            for key, errors in counts.errors.items():
                assert new.errors[key] >= errors
        counts, before = new, after
