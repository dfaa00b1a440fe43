import socket

import pytest

from disagg_exporter.http.listen import ListenAddress, ListenError, open_listener, parse_listen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0:9847", ListenAddress("0.0.0.0", 9847)),
        ("127.0.0.1:0", ListenAddress("127.0.0.1", 0)),
        (":9847", ListenAddress("", 9847)),
        ("[::]:9847", ListenAddress("::", 9847)),
        ("[::1]:1", ListenAddress("::1", 1)),
        ("gpu-7.example.org:65535", ListenAddress("gpu-7.example.org", 65535)),
    ],
)
def test_an_address_is_read_and_written_back(text: str, expected: ListenAddress) -> None:
    assert parse_listen(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "9847", "host", "host:", "host:http", "::1:9847", "[::1]", "[::1:9"),
        *("host:65536", "host:-1", "host:+1", "host:1 2", "host:\u0661"),
    ],
)
def test_an_invalid_address_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(ListenError, match=r"give HOST:PORT, \[IPV6\]:PORT or :PORT"):
        parse_listen(text)


def test_a_port_in_use_is_refused_with_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ListenAddress("127.0.0.1", taken.getsockname()[1])

        with pytest.raises(ListenError) as caught:
            open_listener(address)
        with pytest.raises(ListenError) as elsewhere:
            open_listener(address, "`listen:` of another file")

    assert str(caught.value).startswith(f"cannot listen on {address}: the port is taken")
    setting = "`--port`, or `listen: metrics:` in the node file, if there is one"
    assert str(caught.value).endswith(f"or choose another port ({setting})")
    assert str(elsewhere.value).endswith("or choose another port (`listen:` of another file)")


@pytest.mark.parametrize("host", ["192.0.2.1", "x" * 64 + ".invalid"])
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ListenError, match="cannot listen on"):
        open_listener(ListenAddress(host, 0))
