"""The demo's load and node file."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.demo.disaggregated_client import CompletionError
from disagg_cluster.demo.load import LoadGenerator
from disagg_cluster.demo.nodefile import (
    GPUS,
    METRICS_ADDRESS,
    OUTPUT_HEAVY,
    PROMPT_HEAVY,
    WORKERS,
    LoadShape,
    demo_node_file,
    free_ports,
)
from disagg_cluster.demo.pools import PoolUrls
from disagg_cluster.simulator.load import Mix

BUSY = LoadShape(Mix(2000.0, 10, 10), Mix(2000.0, 10, 10))
PREFILL = ("http://p0", "http://p1")
DECODE = ("http://d0", "http://d1", "http://d2")
POOLS = PoolUrls(PREFILL, DECODE)


def eventually(true: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    tick = threading.Event()
    while not true():
        assert time.monotonic() < until, "it did not come true"
        tick.wait(0.002)


def test_the_load_swings_between_its_two_mixes() -> None:
    shape = LoadShape(period_seconds=100.0)

    assert shape.rate(25.0) == replace(
        PROMPT_HEAVY, requests_per_second=pytest.approx(PROMPT_HEAVY.requests_per_second)
    )
    assert shape.rate(75.0) == replace(
        OUTPUT_HEAVY, requests_per_second=pytest.approx(OUTPUT_HEAVY.requests_per_second)
    )
    assert shape.rate(0.0).prompt_tokens == round(math.sqrt(4000 * 400))


@given(st.floats(0, 1e6))
def test_the_load_stays_between_its_mixes(t_seconds: float) -> None:
    mix = LoadShape().rate(t_seconds)

    assert 6.0 - 1e-9 <= mix.requests_per_second <= 12.0 + 1e-9
    assert 400 <= mix.prompt_tokens <= 4000
    assert 6 <= mix.output_tokens <= 160


def test_engines_of_each_kind_are_used_in_turn() -> None:
    taken: list[tuple[str, str]] = []
    generator = LoadGenerator(POOLS, lambda p, d, mix: taken.append((p, d)), shape=BUSY)

    generator.start()
    eventually(lambda: len(taken) >= 60)
    generator.stop()

    counts = generator.counts()
    assert counts.completed == counts.sent == len(taken)
    for index, urls in ((0, PREFILL), (1, DECODE)):
        each = [sum(pair[index] == url for pair in taken) for url in urls]
        assert max(each) - min(each) <= 1


def test_pools_are_read_for_each_request_and_an_empty_kind_keeps_its_own() -> None:
    now = [PoolUrls(("http://p1",), DECODE)]
    taken: list[tuple[str, str]] = []
    generator = LoadGenerator(POOLS, lambda p, d, mix: taken.append((p, d)), shape=BUSY)
    generator.follow(lambda: now[0])

    generator.start()
    eventually(lambda: len(taken) >= 10)
    assert {prefill for prefill, _ in taken[:10]} == {"http://p1"}
    now[0] = PoolUrls((), ("http://d9",))
    # Requests already under way still go to their first target.
    eventually(lambda: {decode for _, decode in taken[-20:]} == {"http://d9"})
    generator.stop()

    assert {prefill for prefill, _ in taken[-20:]} == set(PREFILL)


def test_a_failed_request_is_counted_and_the_load_continues() -> None:
    def send(prefill_url: str, decode_url: str, mix: Mix) -> None:
        if prefill_url == "http://p0":
            raise CompletionError("down")

    generator = LoadGenerator(POOLS, send, shape=BUSY)

    generator.start()
    eventually(lambda: generator.counts().failed >= 10 and generator.counts().completed >= 10)
    generator.stop()

    counts = generator.counts()
    assert counts.failed + counts.completed == counts.sent
    assert abs(counts.failed - counts.completed) <= 1


def test_more_than_the_allowed_requests_are_skipped_and_not_queued() -> None:
    release = threading.Event()
    generator = LoadGenerator(POOLS, lambda p, d, mix: release.wait(10), shape=BUSY, concurrency=3)

    generator.start()
    eventually(lambda: generator.counts().skipped >= 5)

    assert (generator.counts().sent, generator.counts().in_flight) == (3, 3)
    release.set()
    generator.stop()
    assert generator.counts().in_flight == 0


def test_stopping_does_not_wait_for_an_engine_that_hangs() -> None:
    release = threading.Event()
    generator = LoadGenerator(POOLS, lambda p, d, mix: release.wait(30), shape=BUSY)
    generator.start()
    eventually(lambda: generator.counts().in_flight > 0)

    began = time.monotonic()
    generator.stop(deadline_seconds=0.05)

    assert time.monotonic() - began < 5
    sent = generator.counts().sent
    release.set()
    eventually(lambda: generator.counts().in_flight == 0)
    assert generator.counts().sent == sent


def test_the_embedded_default_gives_every_simulated_gpu_to_one_worker() -> None:
    node_file = demo_node_file(range(9000, 9000 + WORKERS))

    workers = node_file["workers"]
    assert sorted(gpu for worker in workers for gpu in worker["gpus"]) == list(range(8))
    by_role = {
        role: [len(w["gpus"]) for w in workers if w["role"] == role]
        for role in ("prefill", "decode")
    }
    assert by_role == {"prefill": [1, 1, 1, 1], "decode": [2, 2]}
    assert {worker["engine"] for worker in workers} == {"standin"}
    assert [worker["port"] for worker in workers] == list(range(9000, 9006))
    assert (node_file["devices"], node_file["sim_devices"]) == ("sim", GPUS)
    assert node_file["cluster"] == "demo"
    assert node_file["listen"]["metrics"] == METRICS_ADDRESS == "127.0.0.1:9847"


def test_the_demo_wants_a_port_for_each_worker() -> None:
    with pytest.raises(ValueError, match="6 workers, not 2"):
        demo_node_file([1, 2])


def test_free_ports_are_distinct_and_not_ephemeral() -> None:
    ports = [*free_ports(20), *free_ports(20)]

    assert len(set(ports)) == 40
    assert max(ports) < 30_000  # the kernel lends those from 32768 on, unless told otherwise
