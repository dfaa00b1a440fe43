"""The pods of a node, followed over real HTTP through everything that can happen to a watch."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cluster.discovery.kubernetes.api_server import ApiServer, in_cluster
from disagg_cluster.discovery.kubernetes.pod_watch import PodWatch
from disagg_cluster.discovery.kubernetes.pods import Pod
from support.async_tests import LONG_SECONDS, async_test, running, until
from support.certificates import server_context, write_files
from support.fake_api_server import NODE, FakeApiServer, fake_api_server, pod_json, uid_of


@pytest.fixture
def cluster() -> Iterator[tuple[FakeApiServer, str]]:
    with fake_api_server() as served:
        yield served


def names(watch: PodWatch) -> list[str]:
    return sorted(pod.name for pod in watch.pods())


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def watch_of(url: str) -> PodWatch:
    return PodWatch(ApiServer(url), NODE, chance=random.Random(1))


@async_test
async def test_added_changed_and_deleted_pods_are_followed(
    cluster: tuple[FakeApiServer, str],
) -> None:
    api, url = cluster
    api.put(pod_json("old", labels={"llm-d.ai/role": "prefill"}))
    watch = watch_of(url)

    async with running(watch.run()):
        await until(lambda: names(watch) == ["old"])
        api.put(pod_json("new"))
        await until(lambda: names(watch) == ["new", "old"])
        api.put(pod_json("old", labels={"llm-d.ai/role": "decode"}))
        await until(lambda: {"llm-d.ai/role": "decode"} in [p.labels for p in watch.pods()])
        api.delete("old")
        await until(lambda: names(watch) == ["new"])

    assert watch.status().success
    assert watch.why() == ""


@async_test
async def test_only_the_pods_of_this_node_are_asked_for_and_kept(
    cluster: tuple[FakeApiServer, str],
) -> None:
    api, url = cluster
    api.put(pod_json("ours"))
    api.put(pod_json("theirs", node="gpu-8"))
    watch = watch_of(url)

    async with running(watch.run()):
        await until(lambda: names(watch) == ["ours"])

    assert all("fieldSelector=spec.nodeName%3Dgpu-7" in request for request in api.requests)
    assert "resourceVersion=0" in api.requests[0]


@async_test
async def test_a_cut_watch_continues_without_a_list(
    cluster: tuple[FakeApiServer, str],
) -> None:
    api, url = cluster
    api.put(pod_json("a"))
    watch = watch_of(url)

    async with running(watch.run()):
        await until(lambda: names(watch) == ["a"])
        await until(lambda: any("watch=1" in request for request in api.requests))
        api.hang_up()
        api.put(pod_json("b"))
        await until(lambda: names(watch) == ["a", "b"])

    assert len([r for r in api.requests if "watch" not in r]) == 1


@async_test
async def test_an_expired_version_leads_to_a_new_list(
    cluster: tuple[FakeApiServer, str],
) -> None:
    api, url = cluster
    api.put(pod_json("a"))
    api.bookmark_seconds = LONG_SECONDS
    watch = watch_of(url)

    async with running(watch.run()):
        await until(lambda: any("watch=1" in request for request in api.requests))
        api.status = 503
        api.hang_up()
        await until(lambda: not watch.status().success)
        assert names(watch) == ["a"], "without its API server a node gets no new pods"
        api.delete("a")
        api.put(pod_json("b"))
        api.forget()
        api.status = 0
        await until(lambda: names(watch) == ["b"])

    # Not from the memory of a server that may be behind our version.
    assert "resourceVersion=0" not in [r for r in api.requests if "watch" not in r][-1]


@pytest.mark.parametrize("code", [410, 500, 504])
@async_test
async def test_an_error_event_leads_to_a_new_list(
    cluster: tuple[FakeApiServer, str], code: int
) -> None:
    api, url = cluster
    api.put(pod_json("a"))
    watch = watch_of(url)

    async with running(watch.run()):
        await until(lambda: names(watch) == ["a"])
        api.fail_watch_code = code
        await until(lambda: len([r for r in api.requests if "watch" not in r]) == 2)
        api.put(pod_json("b"))
        await until(lambda: names(watch) == ["a", "b"])


@async_test
async def test_bookmarks_advance_the_watch_position(cluster: tuple[FakeApiServer, str]) -> None:
    api, url = cluster
    api.put(pod_json("a"))
    watch = watch_of(url)

    async with running(watch.run()):
        await until(lambda: names(watch) == ["a"])
        api.put(pod_json("elsewhere", node="gpu-8"))
        version = api.version
        await until(lambda: watch._store.resource_version == str(version))
        api.forget()
        api.hang_up()
        api.put(pod_json("b"))
        await until(lambda: names(watch) == ["a", "b"])

    assert len([r for r in api.requests if "watch" not in r]) == 1


@async_test
async def test_a_missing_right_is_named(cluster: tuple[FakeApiServer, str]) -> None:
    api, url = cluster
    api.status = 403
    watch = watch_of(url)

    async with running(watch.run()):
        await until(lambda: "403" in watch.why())

    assert "list and watch on pods" in watch.why()
    assert watch.pods() == ()
    assert not watch.status().success
    assert watch.status().last_success_timestamp_seconds is None


@async_test
async def test_an_unforeseen_error_is_a_failed_collector_until_the_pods_are_listed_again(
    cluster: tuple[FakeApiServer, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def trip(_steps: object) -> Pod:
        raise ZeroDivisionError("s3cret")

    api, url = cluster
    api.put(pod_json("a"))
    watch = watch_of(url)

    async with running(watch.run()):
        with monkeypatch.context() as broken:
            broken.setattr("disagg_cluster.discovery.kubernetes.pod_watch.read_pod", trip)
            await until(lambda: "ZeroDivisionError" in watch.why())
            assert not watch.status().success
            await until(lambda: len(api.requests) > 1)
        await until(lambda: names(watch) == ["a"])

    assert watch.status().success
    assert "s3cret" not in caplog.text
    assert len([r for r in caplog.records if "ZeroDivisionError" in r.message]) == 1


@async_test
async def test_an_unreachable_server_is_reported_and_retried_with_back_off() -> None:
    watch = PodWatch(ApiServer("http://127.0.0.1:1"), NODE)

    async with running(watch.run()):
        await until(lambda: "refused" in watch.why())

    assert not watch.listed


@async_test
async def test_the_token_is_read_for_every_request(
    cluster: tuple[FakeApiServer, str], tmp_path: Path
) -> None:
    api, url = cluster
    api.put(pod_json("a"))
    api.token = "first"
    token = tmp_path / "token"
    token.write_text("first\n")
    watch = PodWatch(ApiServer(url, token_file=token), NODE, chance=random.Random(1))

    async with running(watch.run()):
        await until(lambda: names(watch) == ["a"])
        api.token = "second"
        token.write_text("second\n")
        api.hang_up()
        api.put(pod_json("b"))
        await until(lambda: names(watch) == ["a", "b"])


@async_test
async def test_the_clusters_own_authority_is_trusted(tmp_path: Path) -> None:
    write_files(tmp_path)
    with fake_api_server(server_context()) as (api, url):
        api.put(pod_json("a"))
        watch = PodWatch(ApiServer(url, ca_file=tmp_path / "ca.pem"), NODE)
        async with running(watch.run()):
            await until(lambda: names(watch) == ["a"])
            api.put(pod_json("b"))
            await until(lambda: names(watch) == ["a", "b"])


@pytest.mark.parametrize(
    ("ca", "words"), [(None, "TLS: "), ("other-cert.pem", "TLS: "), ("missing", "No such file")]
)
@async_test
async def test_a_server_of_another_authority_receives_nothing(
    tmp_path: Path, ca: str | None, words: str
) -> None:
    write_files(tmp_path, {"token": "t"})
    with fake_api_server(server_context()) as (api, url):
        ca_file = None if ca is None else tmp_path / ca
        watch = PodWatch(ApiServer(url, tmp_path / "token", ca_file), NODE)
        async with running(watch.run()):
            await until(lambda: words in watch.why())

    assert api.requests == []


@async_test
async def test_an_unreadable_token_is_reported_without_its_text(tmp_path: Path) -> None:
    watch = PodWatch(ApiServer("http://127.0.0.1:1", token_file=tmp_path / "token"), NODE)

    async with running(watch.run()):
        await until(lambda: watch.why() != "the API server was not asked yet")

    assert not watch.status().success


@async_test
async def test_ten_thousand_events_leave_nothing_behind(cluster: tuple[FakeApiServer, str]) -> None:
    """Bar 2 of the attach issue: pods rolled ten thousand times, memory flat."""
    api, url = cluster
    api.put(pod_json("last"))
    watch = watch_of(url)

    async def roll(times: int) -> None:
        for at in range(0, times, 250):
            for one in range(at, at + 250):
                api.put(pod_json(f"p{one}", labels={"round": str(one)}, args=("--model", "m")))
                if one:
                    api.delete(f"p{one - 1}")
            await until(lambda end=at + 249: names(watch) == ["last", f"p{end}"])
        api.delete(f"p{times - 1}")
        await until(lambda: names(watch) == ["last"])

    async with running(watch.run()):
        await until(lambda: names(watch) == ["last"])
        await roll(500)
        before_bytes = resident_bytes()
        await roll(4500)
        grown_bytes = resident_bytes() - before_bytes

    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, Pod) and "round" in each.labels]
    assert kept == []
    # What they would have taken: 9,000 events of a kilobyte, without Python's overhead.
    assert grown_bytes < 8 << 20


def test_in_a_cluster_the_server_address_is_in_the_environment(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}

    server = in_cluster(environ, tmp_path)

    assert server == ApiServer("https://[fd00::1]:6443", tmp_path / "token", tmp_path / "ca.crt")
    assert in_cluster({}) is None


def test_the_secrets_of_a_pod_are_neither_kept_nor_shown(tmp_path: Path) -> None:
    from disagg_cluster.discovery.kubernetes.pods import read_pod

    pod = read_pod(pod_json("a", args=("--api-key", "k-123")))

    assert pod is not None
    assert "secret" not in json.dumps(dataclasses.asdict(pod))
    assert "k-123" not in repr(pod)
    assert pod.uid == uid_of("a")
