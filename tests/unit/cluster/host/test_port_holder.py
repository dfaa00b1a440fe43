"""A worker is not started into a port that it could not listen on."""

import os

import pytest

from disagg_cluster.host.port_holder import port_holder
from support.listening import listening


@pytest.mark.parametrize(
    ("host", "both", "wanted"),
    [
        ("127.0.0.1", False, "127.0.0.1"),
        ("0.0.0.0", False, "127.0.0.1"),
        ("::", True, "127.0.0.1"),
        ("::", False, "::1"),
        ("0.0.0.0", False, "::1"),
    ],
)
def test_whoever_is_in_the_way_is_named(host: str, both: bool, wanted: str) -> None:
    with listening(host, both=both) as held:
        port = held.getsockname()[1]
        said = port_holder(wanted, port)
    assert said is not None
    assert said.startswith(f"another process listens on port {port}: pid {os.getpid()} (")


def test_who_listens_by_ipv6_alone_is_in_nobodys_way_who_listens_by_ipv4() -> None:
    with listening("::") as held:
        assert port_holder("127.0.0.1", held.getsockname()[1]) is None


def test_port_0_is_nobodys() -> None:
    assert port_holder("127.0.0.1", 0) is None
