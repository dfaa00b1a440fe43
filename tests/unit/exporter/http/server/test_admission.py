"""Which connection a new one displaces."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.http.server.admission import ConnectionLimits, address_of, displaced_by

LIMITS = ConnectionLimits(total=6, per_address=3)


@dataclass
class Held:
    number: int
    address: str
    since_seconds: float


def held(*addresses: str) -> list[Held]:
    """Connections of these, the first of them the longest at it."""
    return [Held(number, address, number) for number, address in enumerate(addresses)]


def test_no_connection_is_displaced_below_the_limits() -> None:
    assert displaced_by("a", held("a", "a", "b", "b"), LIMITS) is None


def test_an_address_at_its_limit_displaces_its_own_oldest_connection() -> None:
    assert displaced_by("a", held("b", "a", "a", "a"), LIMITS) == 1


def test_at_the_total_limit_the_address_with_most_connections_is_displaced() -> None:
    assert displaced_by("c", held("b", "a", "a", "b", "a", "d"), LIMITS) == 1


def test_an_address_with_as_many_connections_as_any_displaces_its_own() -> None:
    assert displaced_by("c", held("a", "b", "c", "c", "a", "b"), LIMITS) == 2


def test_among_addresses_with_one_connection_each_the_oldest_is_displaced() -> None:
    assert displaced_by("g", held("a", "b", "c", "d", "e", "f"), LIMITS) == 0


@given(st.lists(st.sampled_from("aaaaaabcdef"), max_size=80))
def test_limits_hold_and_no_address_is_displaced_by_one_with_more(comers: list[str]) -> None:
    there: dict[int, Held] = {}
    for number, address in enumerate(comers):
        gone = displaced_by(address, there.values(), LIMITS)
        if gone is not None:
            counts = Counter(one.address for one in there.values())
            loser = there.pop(gone).address
            assert loser == address or counts[loser] > counts[address]
        there[number] = Held(number, address, number)

        assert len(there) <= LIMITS.total
        assert max(Counter(one.address for one in there.values()).values()) <= LIMITS.per_address


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_clients_are_counted_by_address_and_those_of_one_subnet_of_ipv6_together(
    host: str, address: str
) -> None:
    assert address_of((host, 4711, 0, 0)) == address
