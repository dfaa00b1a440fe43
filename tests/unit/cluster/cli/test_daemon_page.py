"""How `phases` and `doctor` come to the page of a daemon that is behind TLS and a password."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest
import yaml
from click.testing import CliRunner

from disagg_cluster.cli import daemon_page
from disagg_cluster.cli.main import main
from disagg_cluster.config import Bridges, Listen
from disagg_cluster.daemon.endpoint_file import EndpointFile
from disagg_cluster.daemon.metrics_service import MetricsService
from support.certificates import write_files
from support.children import free_port
from support.snapshots import golden_snapshot

TLS = {"tls_server_config": {"cert_file": "cert.pem", "key_file": "key.pem"}}
USERS = {"basic_auth_users": {"me": bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()}}
PASSWORD = "basic_auth: {username: me, password_file: word}\n"


@pytest.fixture(autouse=True)
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of this test's own, without a wait from look to look."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "session"))
    (tmp_path / "session" / "disagg-node").mkdir(parents=True)


@contextlib.contextmanager
def serving(folder: Path, web: object, port: int = 0, *, leaves: bool = True) -> Iterator[int]:
    """What a daemon shows, with a web-config file or none, and its word; yield the port."""
    write_files(folder, {"web.yml": yaml.safe_dump(web), "word": "secret\n"})
    web_config = None if web is None else str(folder / "web.yml")
    listen = Listen(metrics=f"127.0.0.1:{port}", web_config=web_config)
    front = MetricsService(listen, Bridges(), "gpu-7", lambda: 0.0)
    front.show(golden_snapshot())
    with front.running() as address, contextlib.ExitStack() as stack:
        if leaves:
            word = folder / "session" / "disagg-node" / "whereabouts.json"
            stack.enter_context(EndpointFile(word, address, listen))
        yield address.port


def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, arguments, env=environment)
    return result.exit_code, result.stdout, result.stderr


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def shows_the_daemons_account(*arguments: str, **environment: str) -> bool:
    """Whether `phases` shows what the daemon tells, rather than what it sees itself."""
    code, said, talk = run("phases", *arguments, **environment)
    return code == 0 and said.startswith("GPU") and "looking myself" not in talk


def test_the_daemon_of_this_node_is_found_and_trusted_by_its_own_files(tmp_path: Path) -> None:
    """No option is needed: its endpoint file names its port and web-config file."""
    with serving(tmp_path, TLS) as port:
        assert shows_the_daemons_account()

        told = json.loads(run("doctor", "--json")[1])
    assert told["findings"][0]["what"].endswith(f" answers at https://127.0.0.1:{port}")


@pytest.mark.parametrize("command", [("phases",), ("doctor",), ("top", "--once")])
def test_a_page_that_requires_a_password_is_reported_alike_by_every_command(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    with serving(tmp_path, USERS) as port:
        code, said, talk = run(*command, "--url", f"http://127.0.0.1:{port}")

    assert (code, said) == (2, "")
    assert talk.startswith("cannot look: ")
    assert "it wants a name and a password (401)" in talk


def test_a_password_is_read_from_the_file_of_an_option_or_a_variable(tmp_path: Path) -> None:
    client = written(tmp_path / "client.yml", PASSWORD)
    with serving(tmp_path, TLS | USERS):
        assert shows_the_daemons_account("--http-config", client)
        assert shows_the_daemons_account(DISAGG_NODE_HTTP_CONFIG=client)

        code, said, talk = run("phases")
    assert (code, said) == (2, "")
    assert "it wants a name and a password (401)" in talk


def test_without_an_endpoint_file_the_node_file_gives_the_address(tmp_path: Path) -> None:
    port = free_port()
    listen = {"metrics": f"0.0.0.0:{port}", "web_config": str(tmp_path / "web.yml")}
    node = {"devices": "cpu", "run_dir": str(tmp_path / "run"), "listen": listen}
    file = written(tmp_path / "node.yaml", yaml.safe_dump(node))
    with serving(tmp_path, TLS, port, leaves=False):
        assert shows_the_daemons_account("-c", file)


def test_phases_over_plain_http_loads_no_heavy_modules(tmp_path: Path) -> None:
    """Each takes a tenth of a second of CPU or more, and `phases` does not need it."""
    file = written(tmp_path / "node.yaml", "attach: {}\n")
    program = (
        "import sys\n"
        "from disagg_cluster.cli.main import main\n"
        f"main(['phases', '-c', {file!r}], standalone_mode=False)\n"
        "print(*sys.modules)\n"
    )
    with serving(tmp_path, None):
        command = [sys.executable, "-c", program]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert told.stdout.startswith("GPU")
    assert not {"pydantic", "numpy", "asyncio", "rich"} & set(told.stdout.split())


@pytest.mark.parametrize("text", ["attach: {}\n", "run_dir: DIR\nattach: {}\nworkers: [1]\n"])
def test_a_running_daemon_is_found_without_parsing_its_whole_node_file(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing the whole node file takes longer than the rest of the command."""
    monkeypatch.setattr(daemon_page, "_loaded", None)
    folder = str(tmp_path / "session" / "disagg-node")
    file = written(tmp_path / "node.yaml", text.replace("DIR", folder))
    with serving(tmp_path, None):
        assert shows_the_daemons_account("--config", file)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "run_dir: [DIR]", "run_dir: DIR\nrun_dir: DIR", "run_dir: ~", "run_dir: {"),
        *("run_dir: session/disagg-node", "<<: {run_dir: DIR}", "a: 1\n---\nb: 2", "run_dir: \x00"),
    ],
)
def test_the_quick_endpoint_lookup_skips_a_node_file_without_a_plain_run_dir(
    text: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "session" / "disagg-node")
    file = Path(written(tmp_path / "node.yaml", text.replace("DIR", folder)))
    with serving(tmp_path, {}):
        assert daemon_page._endpoint_by_run_dir(file) is None
        assert daemon_page._endpoint_by_run_dir(tmp_path) is None


def test_the_address_of_the_metrics_page_is_accepted_for_its_daemon() -> None:
    roots = {
        daemon_page.target_of(f"http://gpu-7:9847{path}", None, None).url
        for path in ("", "/", "/metrics", "/metrics/")
    }

    assert roots == {"http://gpu-7:9847"}


def test_an_https_address_of_this_node_is_trusted_by_the_daemons_own_certificate(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, TLS) as port:
        assert shows_the_daemons_account("--url", f"https://localhost:{port}/")

        code, _, talk = run("phases", "--url", f"http://localhost:{port}")
    assert code == 2
    assert "a server that speaks TLS is asked by https://" in talk


def test_the_certificate_of_another_daemon_is_not_trusted(tmp_path: Path) -> None:
    with serving(tmp_path, TLS, leaves=False) as port:
        code, _, talk = run("phases", "--url", f"https://127.0.0.1:{port}")

    assert code == 2
    assert "its certificate is not trusted (" in talk


def test_a_web_config_without_tls_is_requested_over_plain_http(tmp_path: Path) -> None:
    client = written(tmp_path / "client.yml", PASSWORD)
    with serving(tmp_path, USERS):
        assert shows_the_daemons_account("--http-config", client)


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ("web.yml", "web.yml: cannot be read: No such file or directory"),
        ("cert.pem", "tls_server_config.cert_file: cannot be read: No such file or directory"),
    ],
)
def test_an_unreadable_web_config_is_reported_with_the_options_to_use(
    lost: str, told: str, tmp_path: Path
) -> None:
    with serving(tmp_path, TLS) as port:
        (tmp_path / lost).unlink()
        code, said, talk = run("phases")

    assert (code, said) == (2, "")
    assert talk.startswith("cannot look: ")
    assert told in talk
    assert f"--url https://127.0.0.1:{port} and --http-config FILE" in talk


def test_url_and_http_config_work_with_an_unreadable_web_config(tmp_path: Path) -> None:
    client = written(tmp_path / "client.yml", "tls_config: {ca_file: ca.pem}\n")
    with serving(tmp_path, TLS) as port:
        (tmp_path / "web.yml").unlink()

        assert shows_the_daemons_account(
            "--url", f"https://127.0.0.1:{port}", "--http-config", client
        )


def test_an_inline_certificate_of_the_web_config_is_trusted(tmp_path: Path) -> None:
    write_files(tmp_path)
    texts = {name: (tmp_path / f"{name}.pem").read_text() for name in ("cert", "key")}
    with serving(tmp_path, {"tls_server_config": texts}):
        assert shows_the_daemons_account()


@pytest.mark.parametrize("middle", ["", "nothing", "\N{SNOWMAN}"])
def test_an_invalid_certificate_is_reported(middle: str, tmp_path: Path) -> None:
    with serving(tmp_path, TLS):
        frame = ("-----BEGIN CERTIFICATE-----", middle, "-----END CERTIFICATE-----", "")
        written(tmp_path / "cert.pem", "\n".join(frame))
        code, _, talk = run("phases")

    assert code == 2
    assert "tls_server_config.cert_file: no certificate in PEM\n" in talk


def test_an_invalid_http_config_is_reported_with_its_line(tmp_path: Path) -> None:
    client = written(tmp_path / "client.yml", "basic_auth: {user: me}\n")

    code, said, talk = run("doctor", "--http-config", client)

    assert (code, said) == (2, "")
    assert f"{client}:1: basic_auth.user: unknown key\n" in talk
