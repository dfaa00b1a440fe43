from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.config import NodeConfig, Router
from disagg_cluster.daemon.main_loop import BackgroundTasks
from disagg_cluster.daemon.router_handle import RouterWatch, router_spec
from disagg_cluster.launch.router_command import router_command, router_engines, start_seconds
from disagg_cluster.supervisor.health.readiness import ProbeTarget
from disagg_exporter.collectors import Backoff, keep_running
from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.router import parse_router_page
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import CollectorStatus, Phase, RouterCounts, RouterEngine, RouterPage
from support.node_files import node, worker


def standins(**router: Any) -> tuple[NodeConfig, Router]:
    """Two prefill, one decode and a mixed stand-in behind a router."""
    config = node(
        worker("prefill-0", engine="standin", role="prefill", port=8100, host="0.0.0.0"),
        worker("decode-0", engine="standin", role="decode", port=8200),
        worker("prefill-1", engine="standin", role="prefill", port=8101, host="0.0.0.0"),
        worker("mixed-0", engine="standin", port=8300),
        devices="sim",
        router={"python": "/venv/bin/python", **router},
    )
    assert config.router is not None
    return config, config.router


def test_the_router_command_lists_every_prefill_and_decode_engine() -> None:
    command = router_command(*standins())

    assert command.argv == (
        *("/venv/bin/python", "-m", "vllm_router.launch_router", "--vllm-pd-disaggregation"),
        *("--prefill", "http://127.0.0.1:8100", "--prefill", "http://127.0.0.1:8101"),
        *("--decode", "http://127.0.0.1:8200", "--host", "127.0.0.1", "--port", "8000"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", "29000"),
        *("--policy", "round_robin", "--kv-connector", "nixl"),
        *("--health-check-interval-secs", "5", "--worker-startup-timeout-secs", "960"),
        *("--worker-startup-check-interval", "1"),
    )
    assert command.env == {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


def test_router_settings_of_the_node_file_reach_its_command() -> None:
    command = router_command(
        *standins(
            host="0.0.0.0",
            port=80,
            metrics_port=29001,
            policy="cache_aware",
            prefill=["http://10.0.0.7:8100/"],
            decode=["http://10.0.0.8:8200"],
            args=["--log-level", "warning"],
            env={"NO_PROXY": "mine"},
        )
    )

    asked = [*zip(command.argv, command.argv[1:], strict=False)]
    assert [url for option, url in asked if option == "--prefill"][-1] == "http://10.0.0.7:8100"
    assert [url for option, url in asked if option == "--decode"][-1] == "http://10.0.0.8:8200"
    assert {("--host", "0.0.0.0"), ("--port", "80"), ("--prometheus-port", "29001")} < {*asked}
    assert ("--policy", "cache_aware") in asked
    assert command.argv[-2:] == ("--log-level", "warning")
    assert command.env == {"NO_PROXY": "mine", "no_proxy": "127.0.0.1,10.0.0.7,10.0.0.8"}


def test_a_mooncake_engine_is_listed_with_its_side_channel_port() -> None:
    transfer = {"connector": "MooncakeConnector", "side_channel_port": 9000}
    config = node(
        worker("prefill-0", role="prefill", port=8100, kv_transfer=transfer),
        worker("decode-0", role="decode", port=8200, kv_transfer=transfer),
        router={"kv_connector": "mooncake"},
    )
    assert config.router is not None

    argv = router_command(config, config.router).argv

    first = argv.index("--prefill")
    assert argv[first : first + 3] == ("--prefill", "http://127.0.0.1:8100", "9000")


def test_a_router_engine_is_named_by_its_worker_or_its_address() -> None:
    assert router_engines(*standins(decode=["http://10.0.0.8:8200"])) == (
        RouterEngine("http://127.0.0.1:8100", "prefill-0", Phase.PREFILL),
        RouterEngine("http://127.0.0.1:8101", "prefill-1", Phase.PREFILL),
        RouterEngine("http://127.0.0.1:8200", "decode-0", Phase.DECODE),
        RouterEngine("http://10.0.0.8:8200", "10.0.0.8:8200", Phase.DECODE),
    )


@pytest.mark.parametrize(
    ("deadlines", "seconds"),
    [({}, 960.0), ({"stop_seconds": 3}, 960.0), ({"start_seconds": 20}, 20.0)],
)
def test_the_default_router_start_deadline_exceeds_that_of_its_engines(
    deadlines: dict[str, float], seconds: float
) -> None:
    """It listens only when all of them are healthy."""
    assert start_seconds(*standins(deadlines=deadlines)) == seconds


def test_the_router_is_supervised_as_a_worker_by_its_own_liveness() -> None:
    """Its /readiness fails if engines are gone, and killing the router would not restore them."""
    config, router = standins(
        port=80, deadlines={"drain_seconds": 20, "stop_seconds": 5}, restart={"crash_limit": 9}
    )

    post = router_spec(config, router, Path("/run/n/logs/router.log"))

    assert (post.name, post.log_path) == ("router", Path("/run/n/logs/router.log"))
    assert post.command == router_command(config, router)
    assert post.target == ProbeTarget(
        80, "", "127.0.0.1", health_path="/liveness", timeout_seconds=2.0
    )
    assert (post.policy.start_seconds, post.policy.crash_limit) == (960.0, 9)


def test_the_router_drains_itself_within_its_stop_deadline() -> None:
    config, router = standins(deadlines={"drain_seconds": 20, "stop_seconds": 5})

    waits = router_spec(config, router, Path("router.log")).policy

    assert (waits.drain_seconds, waits.stop_seconds) == (0.0, 25.0)


PREFILL = RouterEngine("http://127.0.0.1:8100", "prefill-0", Phase.PREFILL)
RouterAnswer = bytes | str
"""A page, or why there is none."""


def page(requests: int, errors: int = 0, health: int = 1) -> bytes:
    """What the router's page holds after so many requests."""
    return (
        f'vllm_router_pd_requests_total{{route="/v1/completions"}} {requests}\n'
        f'vllm_router_pd_prefill_errors_total{{worker="{PREFILL.url}"}} {errors}\n'
        f'vllm_router_worker_health{{worker="{PREFILL.url}"}} {health}\n'
    ).encode()


def watched(*looks: tuple[int | None, RouterAnswer]) -> RouterWatch:
    """A watch after looks at processes (their pids) that tell this or that."""
    script: Iterator[tuple[int | None, RouterAnswer]] = iter(looks)
    told: list[RouterAnswer] = []
    over = asyncio.Event()

    def process() -> int | None:
        look = next(script, None)
        if look is None:
            over.set()
            raise asyncio.CancelledError
        told.append(look[1])
        return look[0]

    def fetch(url: str, deadline_seconds: float) -> bytes:
        assert (url, deadline_seconds) == ("http://127.0.0.1:29000/metrics", 2.0)
        if isinstance(answer := told[-1], str):
            raise DisaggError(answer)
        return answer

    watch = RouterWatch(
        "http://127.0.0.1:29000/metrics", (PREFILL,), 0.0, process, fetch=fetch, wall=lambda: 9.0
    )

    async def look_at_all() -> None:
        task = asyncio.create_task(watch.run())
        await over.wait()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(look_at_all())
    return watch


def test_router_requests_are_counted_from_the_first_scrape_across_restarts() -> None:
    watch = watched((7, page(100)), (7, page(110, errors=1)), (None, ""), (8, page(5)))

    assert watch.status().counts == RouterCounts(15.0, {(Phase.PREFILL, PREFILL.url): 1.0})
    assert watch.status().page is not None


def test_counters_of_a_new_router_process_start_from_zero() -> None:
    watch = watched((7, page(100)), (8, page(150)))

    assert watch.status().counts == RouterCounts(150.0, {(Phase.PREFILL, PREFILL.url): 0.0})


def durations(requests: int) -> bytes:
    """A page with so many answers that each took two seconds."""
    name = 'vllm_router_pd_request_duration_seconds_%s{route="/v1/completions"%s} %d\n'
    bounds = (("1", 0), ("2.5", requests), ("+Inf", requests))
    buckets = (name % ("bucket", f',le="{bound}"', count) for bound, count in bounds)
    return page(requests) + ("".join(buckets) + name % ("sum", "", 2 * requests)).encode()


def test_request_durations_of_a_router_are_counted_across_restarts() -> None:
    watch = watched((1, durations(10)), (1, page(11)), (1, durations(13)), (2, durations(20)))

    counts = watch.counts()
    assert (counts.source, counts.name, list(counts.by_model)) == ("router", "router", [""])
    duration = counts.by_model[""].duration
    assert duration is not None
    assert (duration.total, duration.sum) == (3 + 20, 2 * 23)


def test_durations_first_seen_on_a_later_page_are_counted_from_zero() -> None:
    """A real router shows none for seconds after its first requests."""
    watch = watched((1, page(0)), (1, page(30)), (1, durations(32)), (1, durations(40)))

    duration = watch.counts().by_model[""].duration
    assert duration is not None
    assert duration.total == 40


def test_a_router_before_its_first_request_has_no_durations() -> None:
    assert watched((1, page(0)), (1, page(0))).counts().by_model == {}


def test_an_unreachable_router_keeps_its_counters_and_fails_its_collector(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        watch = watched((7, page(1)), (7, "no answer"), (7, "no answer"), (7, "no answer"))

    status = watch.status()
    assert (status.counts, status.page) == (RouterCounts(), None)
    (collector,) = watch.collectors()
    assert (collector.collector, collector.success) == ("router", False)
    assert collector.last_success_timestamp_seconds == 9.0
    assert caplog.messages == ["router: metrics page: no answer"]


def test_a_router_that_recovers_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        watch = watched((7, "a"), (7, "a"), (7, page(1)), (7, page(2)))

    assert caplog.messages == [
        "router: metrics page: a",
        "router: metrics page is readable again",
    ]
    assert watch.collectors()[0].success


def test_a_router_that_does_not_run_has_no_page_and_no_collector() -> None:
    watch = watched((7, page(1)), (None, ""))

    assert (watch.status().page, watch.collectors()) == (None, ())


def test_a_page_that_is_not_of_a_router_is_a_failed_scrape() -> None:
    watch = watched((7, b"<html>\n"))

    assert watch.status().counts is None
    assert not watch.collectors()[0].success


def test_an_unexpected_parsing_error_fails_only_that_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trips = iter((ValueError("a bug of ours"),))

    def parse(text: bytes, t_ns: int, keys: SeriesKeys) -> RouterPage:
        if (error := next(trips, None)) is not None:
            raise error
        return parse_router_page(text, t_ns, keys)

    monkeypatch.setattr("disagg_cluster.daemon.router_handle.parse_router_page", parse)

    failed = watched((7, page(1)))
    assert [collector.success for collector in failed.collectors()] == [False]
    trips = iter((ValueError("a bug of ours"),))
    recovered = watched((7, page(1)), (7, page(2)))
    assert [collector.success for collector in recovered.collectors()] == [True]
    assert recovered.collectors()[0].unexpected_failures == 1
    assert recovered.status().page is not None


def test_a_router_watch_that_fails_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    quickly = partial(keep_running, backoff=Backoff(0.001), steady_seconds=0.001)
    monkeypatch.setattr("disagg_cluster.daemon.main_loop.keep_running", quickly)
    trips = iter((ValueError("a bug of ours"), KeyError("another")))
    looked = asyncio.Event()

    def process() -> int:
        if (error := next(trips, None)) is not None:
            raise error
        if watch.status().page is not None:
            looked.set()
        return 7

    watch = RouterWatch(
        "http://127.0.0.1:29000/metrics", (PREFILL,), 0.0, process, fetch=lambda _url, _s: page(1)
    )

    async def story() -> tuple[CollectorStatus, ...]:
        parts = BackgroundTasks(logging.getLogger("test"))
        async with asyncio.timeout(20), parts.running({"router": watch.run}):
            await looked.wait()
            return parts.collectors()

    [task] = asyncio.run(story())

    assert (task.collector, task.unexpected_failures) == ("task:router", 2)
