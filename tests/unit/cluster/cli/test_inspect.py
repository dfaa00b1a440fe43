"""The commands `phases`, `doctor` and `plugin env`, whole."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from disagg_cluster.host.files.package_data import engine_side_folder
from disagg_cluster.inspect import node_scan
from support.children import free_port
from support.daemon_answers import VIEW
from support.fake_engines import FakeEngine, install
from support.http_serving import serving

GOLDEN = (Path(__file__).parents[3] / "data" / "golden_page.prom").read_bytes()


class Served:
    """What answers where a daemon should be, as a test wants it."""

    def __init__(self) -> None:
        self.status, self.page, self.asked, self.url = 200, GOLDEN, 0, ""
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked += 1
                self.send_response(served.status)
                self.end_headers()
                self.wfile.write(VIEW if self.path == "/view.json" else served.page)

            def log_message(self, *_: object) -> None:
                pass

        self.handler = Handler


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    with serving(served.handler) as served.url:
        yield served


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.stdout, result.stderr


def nobody_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this node's daemon, of which no word was left, be expected at `url`."""
    monkeypatch.setattr("disagg_cluster.cli.daemon_page.DEFAULT_URL", url)
    monkeypatch.setattr("disagg_cluster.cli.daemon_page._endpoint", lambda *_: None)


def test_phases_shows_the_metrics_of_the_daemon(served: Served) -> None:
    code, said, talk = run("phases", "--url", served.url + "/")
    wide_code, wide, _ = run("phases", "--url", served.url, "--wide")
    json_code, rows, _ = run("phases", "--url", served.url, "--json")

    assert (code, wide_code, json_code) == (0, 0, 0)
    assert said.splitlines()[0].split() == [
        *("GPU", "ENGINE", "ROLE", "PREFILL", "DECODE", "STATE")
    ]
    assert "CONFIDENCE" in wide
    assert "30%" in said
    assert talk == "over 60 s, until 3 s ago\n"
    assert {"prefill-0", "decode-0"} <= {row["engine"] for row in json.loads(rows)}


def test_phases_scans_the_node_without_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody_at(f"http://127.0.0.1:{free_port()}", monkeypatch)
    install(tmp_path)
    producer = ("--kv-transfer-config", '{"kv_role": "kv_producer"}')
    with FakeEngine("vllm", tmp_path, producer) as engine:
        engine.wait_served()
        code, said, talk = run("phases", "--json")

    [row] = [row for row in json.loads(said) if row["engine"] == f"vllm-{engine.port}"]
    assert code == 0
    assert (row["role"], row["confidence"], row["state"]) == ("prefill", "medium", "ready")
    assert row["why"] == "--kv-transfer-config kv_role is kv_producer"
    assert "looking myself" in talk


@pytest.mark.parametrize(
    ("status", "page", "hint"),
    [
        (401, b"password", "in the file of --http-config"),
        (400, b"speak TLS", "asked by https://"),
        (404, b"nothing", "answers 404 instead of 200"),
        (200, b"up 1\n", "--url says where yours is"),
    ],
)
@pytest.mark.parametrize("command", ["phases", "doctor"])
def test_a_page_that_is_not_of_a_daemon_is_refused_with_a_hint(
    served: Served, command: str, status: int, page: bytes, hint: str
) -> None:
    served.status, served.page = status, page

    code, said, talk = run(command, "--url", served.url)

    assert (code, said) == (2, "")
    assert talk.startswith("cannot look: ")
    assert hint in talk


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1.invalid"])
@pytest.mark.parametrize("command", ["phases", "doctor", "top"])
def test_an_unreachable_daemon_given_by_url_is_not_replaced_by_a_local_scan(
    command: str, host: str
) -> None:
    """A local scan would not describe the daemon at that address, even on this machine."""
    url = f"http://{host}:{free_port()}"

    code, said, talk = run(command, "--url", url)

    assert (code, said) == (4, "")
    assert talk.startswith(f"disagg-node: no daemon answers: {url}/")


@pytest.mark.parametrize(
    "url", ["gpu-7:9847", "ftp://gpu-7:9847", "https://me:word@gpu-7:9847", "http://[::1", "9847"]
)
@pytest.mark.parametrize("command", ["phases", "doctor"])
def test_an_invalid_daemon_address_is_bad_usage(command: str, url: str) -> None:
    code, said, talk = run(command, "--url", url)

    assert (code, said) == (2, "")
    assert "is no address of a daemon: give one such as http://127.0.0.1:9847" in talk


def test_a_json_watch_prints_a_line_per_table_until_ctrl_c(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = iter(range(3))

    def interrupted(_seconds: float) -> None:
        if next(tables, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr("disagg_cluster.cli.inspect.time.sleep", interrupted)

    code, said, _ = run("phases", "--watch", "--json", "--url", served.url)

    assert code == 0
    assert [len(json.loads(line)) > 0 for line in said.splitlines()] == [True] * 4


def test_the_doctor_fails_on_a_problem_and_names_the_next_step(served: Served) -> None:
    code, said, _ = run("doctor", "--url", served.url)
    json_code, told, _ = run("doctor", "--url", served.url, "--json")

    # On the golden page one engine does not answer.
    assert (code, json_code) == (1, 1)
    assert "wrong   decode-0 does not answer" in said
    assert said.splitlines()[-1].startswith("next    ")
    assert json.loads(told)["next"]
    levels = {finding["level"] for finding in json.loads(told)["findings"]}
    assert levels == {"fine", "warn", "wrong"}


def test_the_doctor_without_a_daemon_says_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody_at(f"http://127.0.0.1:{free_port()}", monkeypatch)
    monkeypatch.setattr(node_scan, "TOTAL_SECONDS", 0.2)
    monkeypatch.setattr(node_scan, "_READ_SECONDS", 0.1)

    code, said, _ = run("doctor")

    assert code == 1
    assert "nothing is counted" in said
    assert said.splitlines()[-1] == "next    start the daemon: disagg-node start"


def test_plugin_env_prints_shell_exports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "/my code")

    code, said, _ = run("plugin", "env", "--run-dir", str(tmp_path / "a b"))

    variables = dict(word.split("=", 1) for word in shlex.split(said) if word != "export")
    assert code == 0
    assert variables == {
        "PYTHONPATH": f"{engine_side_folder()}:/my code",
        "DISAGG_STEPS_SOCKET": str(tmp_path / "a b" / "attached" / "steps.sock"),
    }
