from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from disagg_cluster.cli.main import main
from disagg_cluster.cli.start import LinkChoice, ListenChoice, say_where
from disagg_cluster.config import LinksConfig
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
def test_a_listen_address_of_the_command_line_overrides_the_node_file(
    address: str | None, port: int | None, meant: str
) -> None:
    assert ListenChoice(address, port).over("0.0.0.0:9847") == meant


@pytest.mark.parametrize("address", ["::1", "host:99999", "a:b"])
def test_an_invalid_listen_address_is_bad_usage(address: str) -> None:
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
def test_a_page_open_to_everybody_without_a_password_is_warned_about(
    address: str, protected: bool, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    say_where(parse_listen(address), protected=protected)

    said = capsys.readouterr().err
    assert said.splitlines()[0].startswith("web page: http://")
    assert ("to everybody and without a password" in said) is warned


def test_an_invalid_grafana_url_is_refused_before_the_demo_starts() -> None:
    result = CliRunner().invoke(main, ["demo", "--grafana-url", "grafana:3000"])

    assert result.exit_code == 2
    assert "--grafana-url: 'grafana:3000' is no root address such as" in result.stderr


@pytest.mark.parametrize(
    "url",
    [
        "https://grafana.example.com",
        "https://example.com/a/grafana",
        "http://[::1]:3000",
        "http://g:3000",
    ],
)
def test_a_link_may_have_a_port_and_a_path(url: str) -> None:
    assert LinksConfig(grafana=f"{url}/").grafana == url


@pytest.mark.parametrize(
    "url",
    [
        *("grafana:3000", "https://", "ftp://a", "https://a:0", "https://a:x", "https://u:p@a"),
        *(
            "https://a/?q",
            "https://a/#f",
            "https://a/x y",
            'https://a/"x',
            "https://a//b",
            "https://1.2",
        ),
    ],
)
def test_an_invalid_link_address_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        LinksConfig(grafana=url)


def test_links_of_the_command_line_override_those_of_the_node_file() -> None:
    file = LinksConfig(prometheus="http://a:9090", grafana="http://a:3000")

    assert LinkChoice(None, "http://b:3000").over(file) == LinksConfig(
        prometheus="http://a:9090", grafana="http://b:3000"
    )


def test_a_start_whose_port_is_taken_prints_the_refusal_and_no_warning(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        file.write_text(
            f"run_dir: {tmp_path / 'run'}\nlisten: {{metrics: '{listen}'}}\nattach: {{}}\n"
        )
        command = [sys.executable, "-m", "disagg_cluster.cli", "start", "-c", str(file)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 1
    assert f"cannot listen on {listen}: the port is taken" in result.stderr
    assert "Warning" not in result.stderr
