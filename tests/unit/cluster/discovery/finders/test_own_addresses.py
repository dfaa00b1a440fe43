"""Declared addresses of this machine are known by its loopback address."""

from __future__ import annotations

import pytest

from disagg_cluster.discovery.finders.own_addresses import (
    ASK_AGAIN_SECONDS,
    OwnAddresses,
    is_own_address,
)
from disagg_cluster.discovery.observations.types import Endpoint


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("localhost", True), ("192.0.2.1", False), ("no such host", False)],
)
def test_an_address_is_own_if_it_can_be_bound(host: str, own: bool) -> None:
    assert is_own_address(host) is own


def test_own_endpoints_are_also_at_the_loopback_address() -> None:
    own = OwnAddresses(lambda host: host == "gpu-7")

    assert own.near(Endpoint("gpu-7", 8000)) == (Endpoint("127.0.0.1", 8000),)
    assert own.near(Endpoint("gpu-8", 8000)) == ()
    assert own.near(Endpoint("127.0.0.1", 8000)) == ()


def test_a_host_is_resolved_once_a_minute_and_forgotten_when_no_longer_declared() -> None:
    asked: list[str] = []
    now_seconds = [0.0]

    def is_own(host: str) -> bool:
        asked.append(host)
        return True

    own = OwnAddresses(is_own, clock=lambda: now_seconds[0])
    for port in range(8000, 8010):
        own.near(Endpoint("gpu-7", port))
    assert asked == ["gpu-7"]

    now_seconds[0] = ASK_AGAIN_SECONDS
    own.near(Endpoint("gpu-8", 8000))
    assert list(own._known) == ["gpu-8"]
    own.near(Endpoint("gpu-7", 8000))
    assert asked == ["gpu-7", "gpu-8", "gpu-7"]
