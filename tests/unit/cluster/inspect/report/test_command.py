"""Messages of `disagg-node report` when it cannot report."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from support.raw_server import raw_server


def said(*arguments: str) -> tuple[int, str]:
    """Return exit code, and the last line on standard error."""
    result = CliRunner().invoke(main, ["report", *arguments], prog_name="disagg-node")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stderr.splitlines()[-1]


def test_an_unreachable_prometheus_is_reported_with_its_option() -> None:
    assert said("--prometheus", "http://127.0.0.1:1") == (
        1,
        "disagg-node: no answer from http://127.0.0.1:1: Connection refused; "
        "--prometheus says where it is",
    )


def _nothing(connection: socket.socket, _over: threading.Event) -> None:
    """Answer like a Prometheus without data."""
    body = b'{"status": "success", "data": {"resultType": "matrix", "result": []}}'
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + body)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--prometheus", "prometheus:9090"], "'prometheus:9090' is no address: give one such as"),
        (["--prometheus", "http://me:w0rd@prometheus"], "belong in the --http-config file"),
        (["-o", "report.pdf"], "the report is a .html or a .md file"),
        (["-o", str(Path("no") / "report.md")], "no is no folder"),
        (["--header", "name"], "--header: what was given is no header: give NAME:VALUE"),
        (["--since", "7x"], "'7x' is no span of time"),
    ],
)
def test_bad_usage_is_reported_before_any_request(arguments: list[str], error: str) -> None:
    code, line = said(*arguments)

    assert code == 2
    assert error in line


def test_a_mismatched_server_name_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "client.yml"
    config.write_text("tls_config: {server_name: prometheus}\n", encoding="utf-8")

    code, line = said("--prometheus", "https://10.0.0.7", "--http-config", str(config))

    assert (code, "not `server_name:`" in line) == (2, True)


def test_the_http_config_sets_the_credentials(tmp_path: Path) -> None:
    config = tmp_path / "client.yml"
    config.write_text("authorization: {credentials: abc}\n", encoding="utf-8")
    with raw_server(_nothing) as (url, told):
        code, line = said("--prometheus", url, "--http-config", str(config))

    assert (code, "holds no " in line) == (1, True)
    assert all(b"\r\nAuthorization: Bearer abc\r\n" in head for head in told)
