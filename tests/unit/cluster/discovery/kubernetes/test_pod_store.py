"""The pods of a node, kept from a list and a watch."""

from __future__ import annotations

import pytest

from disagg_cluster.discovery.kubernetes.pod_store import MAX_PODS, PodStore, WatchOutcome
from disagg_cluster.discovery.kubernetes.pods import Pod
from support.fake_api_server import NODE, pod_json, uid_of


def pods_of(count: int) -> list[Pod]:
    return [Pod(uid_of(f"p{at}"), f"p{at}", "llm", NODE) for at in range(count)]


def test_pods_beyond_what_a_node_can_have_are_left_out_and_counted() -> None:
    store = PodStore(NODE)

    store.replace(pods_of(MAX_PODS + 3), "1")

    assert (len(store.pods), store.left_out) == (MAX_PODS, 3)
    store.replace(pods_of(3), "2")
    assert (len(store.pods), store.left_out) == (3, 0)


def test_a_pod_that_is_deleted_before_it_was_known_changes_nothing() -> None:
    store = PodStore(NODE)
    store.replace(pods_of(1), "1")

    assert store.apply({"type": "DELETED", "object": pod_json("other")}) is WatchOutcome.WATCH

    assert [pod.name for pod in store.pods] == ["p0"]


@pytest.mark.parametrize(
    "event", [None, [], "x", {}, {"type": "ADDED"}, {"type": "?", "object": pod_json("a")}]
)
def test_invalid_events_change_nothing(event: object) -> None:
    store = PodStore(NODE)
    store.replace(pods_of(1), "1")

    assert store.apply(event) is WatchOutcome.WATCH

    assert len(store.pods) == 1


def test_pods_stay_until_the_list_after_an_error() -> None:
    store = PodStore(NODE)
    store.replace(pods_of(2), "7")

    store.invalidate()

    assert (store.resource_version, len(store.pods)) == ("", 2)
