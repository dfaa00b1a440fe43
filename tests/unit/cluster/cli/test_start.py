from __future__ import annotations

import click
import pytest

from disagg_cluster.cli.start import ListenChoice, say_where
from disagg_exporter.http.listen import parse_listen


@pytest.mark.parametrize(
    ("address", "port", "meant"),
    [
        (None, None, "0.0.0.0:9847"),
        (None, 9000, "0.0.0.0:9000"),
        ("127.0.0.1", None, "127.0.0.1:9847"),
        ("[::1]", 9000, "[::1]:9000"),
        ("[::1]", None, "[::1]:9847"),
        (":1", None, ":1"),
        ("10.0.0.7:80", 0, "10.0.0.7:0"),
    ],
)
def test_the_command_line_says_where_to_listen_before_the_node_file(
    address: str | None, port: int | None, meant: str
) -> None:
    assert ListenChoice(address, port).over("0.0.0.0:9847") == meant


@pytest.mark.parametrize("address", ["::1", "host:99999", "a:b"])
def test_what_is_no_address_is_bad_usage(address: str) -> None:
    with pytest.raises(click.UsageError, match=r"^--listen: .* is no address to listen on"):
        ListenChoice(address, None).over("0.0.0.0:9847")


@pytest.mark.parametrize(
    ("address", "protected", "warned"),
    [
        ("0.0.0.0:9847", False, True),
        (":9847", False, True),
        ("[::]:9847", False, True),
        ("0.0.0.0:9847", True, False),
        ("127.0.0.1:9847", False, False),
    ],
)
def test_pages_that_everybody_may_read_are_said_to_be_so(
    address: str, protected: bool, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    say_where(parse_listen(address), protected=protected)

    said = capsys.readouterr().err
    assert said.splitlines()[0].startswith("page for people: http://")
    assert ("to everybody and without a password" in said) is warned
