"""Who has to go for whom."""

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


def test_where_there_is_room_nobody_goes() -> None:
    assert displaced_by("a", held("a", "a", "b", "b"), LIMITS) is None


def test_who_has_its_share_makes_room_for_itself() -> None:
    assert displaced_by("a", held("b", "a", "a", "a"), LIMITS) == 1


def test_where_all_is_taken_the_one_with_the_most_makes_room_for_the_newcomer() -> None:
    assert displaced_by("c", held("b", "a", "a", "b", "a", "d"), LIMITS) == 1


def test_who_has_as_many_as_anybody_takes_from_nobody_else() -> None:
    assert displaced_by("c", held("a", "b", "c", "c", "a", "b"), LIMITS) == 2


def test_clients_with_an_address_each_pay_by_how_long_they_have_been_there() -> None:
    assert displaced_by("g", held("a", "b", "c", "d", "e", "f"), LIMITS) == 0


@given(st.lists(st.sampled_from("aaaaaabcdef"), max_size=80))
def test_limits_hold_and_no_address_loses_to_one_that_has_more(comers: list[str]) -> None:
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
