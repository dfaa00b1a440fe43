"""`disagg-node start` behind a web-config file, as an operator runs it."""

from __future__ import annotations

import base64
import json
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import bcrypt
import yaml

from support.certificates import client_context, write_files
from support.children import free_port
from support.running_node import DISAGG_NODE, wait_for


def hashed(password: str) -> str:
    """As htpasswd writes it; of the least cost that there is."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$")


def web_config(password: str) -> str:
    tls = {"cert_file": "cert.pem", "key_file": "key.pem"}
    users = {"prometheus": hashed(password)}
    return yaml.safe_dump({"tls_server_config": tls, "basic_auth_users": users})


def status(url: str, password: str, context: ssl.SSLContext) -> int:
    """What the page answers; 0 while nobody listens."""
    credentials = base64.b64encode(f"prometheus:{password}".encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {credentials}"})
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except urllib.error.URLError:
        return 0


def node_file(folder: Path, port: int) -> Path:
    text = {"devices": "cpu", "run_dir": str(folder), "listen": {"metrics": f"127.0.0.1:{port}"}}
    (folder / "node.yaml").write_text(yaml.safe_dump(text), encoding="utf-8")
    return folder / "node.yaml"


def told_by(folder: Path) -> list[object]:
    """The rows of `phases`, by the word that the daemon left and a password in a file."""
    client = {"basic_auth": {"username": "prometheus", "password": "first"}}
    (folder / "client.yml").write_text(yaml.safe_dump(client), encoding="utf-8")
    files = ("-c", str(folder / "node.yaml"), "--http-config", str(folder / "client.yml"))
    done = subprocess.run(
        [*DISAGG_NODE, "phases", "--json", *files], capture_output=True, timeout=60, check=True
    )
    assert b"looking myself" not in done.stderr
    rows: list[object] = json.loads(done.stdout)
    return rows


def test_a_changed_password_is_applied_while_the_daemon_runs(tmp_path: Path) -> None:
    write_files(tmp_path, {"web.yml": web_config("first")})
    port, context = free_port(), client_context()
    url = f"https://127.0.0.1:{port}/metrics"
    command = (
        *(*DISAGG_NODE, "start", "--quiet", "--config", str(node_file(tmp_path, port))),
        *("--web-config", str(tmp_path / "web.yml")),
    )
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as daemon,
    ):
        try:
            wait_for(lambda: status(url, "first", context) == 200, "the page")
            assert status(url, "second", context) == 401
            assert told_by(tmp_path) == []

            (tmp_path / "web.yml").write_text(web_config("second"), encoding="utf-8")
            daemon.send_signal(signal.SIGHUP)
            wait_for(lambda: status(url, "second", context) == 200, "the new password")
            assert status(url, "first", context) == 401

            (tmp_path / "web.yml").write_text("basic_auth: {}\n", encoding="utf-8")
            daemon.send_signal(signal.SIGHUP)
            wait_for(
                lambda: b"basic_auth: unknown key" in (tmp_path / "log").read_bytes(), "a word"
            )
            assert status(url, "second", context) == 200
        finally:
            daemon.send_signal(signal.SIGINT)
            daemon.wait(60)
    assert daemon.returncode == 0
    assert (
        f"metrics page: https://127.0.0.1:{port}/metrics".encode()
        in (tmp_path / "log").read_bytes()
    )


def test_all_problems_of_an_invalid_web_config_are_reported_at_start(tmp_path: Path) -> None:
    write_files(tmp_path, {"web.yml": "basic_auth: {}\ntls_server_config: {cert_file: gone}\n"})
    done = subprocess.run(
        [
            *(*DISAGG_NODE, "start", "--config", str(node_file(tmp_path, free_port()))),
            *("--web-config", str(tmp_path / "web.yml")),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ")[1] for line in done.stderr.splitlines() if "web.yml:" in line] == [
        "basic_auth",
        "tls_server_config.cert_file",
        "tls_server_config.key_file",
    ]
    assert not (tmp_path / "lock").exists()
