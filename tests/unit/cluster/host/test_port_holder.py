"""A worker is not started into a port that it could not listen on."""

import os

import pytest

from disagg_cluster.config.masking import masked_arguments
from disagg_cluster.host.port_holder import port_holder
from disagg_cluster.host.processes import procfs
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
        said = port_holder(wanted, port, tuple)
    assert said is not None
    assert said.startswith(f"another process listens on port {port}: pid {os.getpid()} (")


def test_an_ipv6_only_listener_does_not_hold_an_ipv4_port() -> None:
    with listening("::") as held:
        assert port_holder("127.0.0.1", held.getsockname()[1], tuple) is None


def test_port_0_has_no_holder() -> None:
    assert port_holder("127.0.0.1", 0, tuple) is None


def test_secrets_of_the_process_that_holds_a_port_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is said is shown on the page, which may be open to everybody."""
    words = ("vllm", "serve", "m\x1b", "--api-key", "hunter2", "--port", "8000")
    monkeypatch.setattr(procfs, "command_line", lambda _pid: words)
    with listening("127.0.0.1") as held:
        said = port_holder("127.0.0.1", held.getsockname()[1], masked_arguments)

    assert said is not None
    assert said.endswith(r"(vllm serve m\x1b --api-key *** --port 8000)")
