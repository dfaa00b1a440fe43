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
def test_the_process_that_holds_a_port_is_named(host: str, both: bool, wanted: str) -> None:
    with listening(host, both=both) as held:
        port = held.getsockname()[1]
        said = port_holder(wanted, port)
    assert said is not None
    assert said.startswith(f"another process listens on port {port}: pid {os.getpid()} (")


def test_an_ipv6_only_listener_does_not_hold_an_ipv4_port() -> None:
    with listening("::") as held:
        assert port_holder("127.0.0.1", held.getsockname()[1]) is None


def test_port_0_has_no_holder() -> None:
    assert port_holder("127.0.0.1", 0) is None
