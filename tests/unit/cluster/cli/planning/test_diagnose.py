from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from disagg_cluster.cli.planning import diagnose as command
from disagg_cluster.planner.diagnose.reading.rolling_diagnosis import Diagnoses, RollingDiagnosis
from disagg_cluster.planner.diagnose.words.diagnosis_text import diagnoses_text
from disagg_cluster.prometheus.prometheus_api import NoAnswerError
from support.diagnosed import CLEAN, FOUND, UNDECIDED
from support.http_serving import serving
from support.interrupts import take_interrupts


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["diagnose", *map(str, args)], prog_name="disagg-node")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Diagnoses]:
    """What each look finds, in turn; after the last somebody presses Ctrl-C."""
    looks: list[Diagnoses] = []

    def diagnose(_self: object, _now_seconds: float) -> Diagnoses:
        if not looks:
            raise KeyboardInterrupt
        if not (one := looks.pop(0)):
            raise NoAnswerError("no answer from http://prometheus: refused")
        return one

    monkeypatch.setattr(RollingDiagnosis, "diagnose", diagnose)
    monkeypatch.setattr(command, "_WATCH_SECONDS", 0.0)
    return looks


def test_diagnose_prints_the_diagnoses_of_all_models(found: list[Diagnoses]) -> None:
    found.append((CLEAN, UNDECIDED, FOUND))

    code, out, err = run()

    assert (code, err) == (0, "")
    assert out == diagnoses_text([CLEAN, UNDECIDED, FOUND]) + "\n"


def test_diagnose_selects_a_model_by_name_and_an_unknown_one_is_an_error(
    found: list[Diagnoses],
) -> None:
    found += [(UNDECIDED, FOUND), (UNDECIDED, FOUND), ()]

    assert run("--model", "qwen")[1] == diagnoses_text([UNDECIDED]) + "\n"
    code, out, err = run("--model", "qwn")

    assert (code, out) == (1, "")
    assert "knows no model 'qwn'; it knows 'llama', 'qwen'" in err


def test_json_has_all_models_with_time_and_source(found: list[Diagnoses]) -> None:
    found.append((UNDECIDED, FOUND))

    code, out, _ = run("--json", "--prometheus", "http://p:9090")
    whole = json.loads(out)

    assert code == 0
    assert list(whole) == ["made_at", "source", "models"]
    assert whole["source"] == "http://p:9090"
    assert [each["outcome"] for each in whole["models"]] == ["undecided", "found"]


def test_a_watch_continues_after_failures_and_exits_with_0_at_ctrl_c(
    found: list[Diagnoses],
) -> None:
    found += [(CLEAN,), (), (FOUND,)]

    code, out, err = run("--watch", "--prometheus", "http://prometheus:9090")

    assert code == 0
    clean, slow = (out.index(diagnoses_text([each])) for each in (CLEAN, FOUND))
    assert clean < slow
    assert "disagg-node: no answer from http://prometheus: refused; --prometheus says where" in err


def test_a_json_watch_prints_a_line_per_diagnosis(found: list[Diagnoses]) -> None:
    found += [(CLEAN,), (FOUND,)]

    _, out, _ = run("--watch", "--json")

    outcomes = [json.loads(line)["models"][0]["outcome"] for line in out.splitlines()]
    assert outcomes == ["no_bottleneck", "found"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--since", "1m"), "1m is too short or too long: 2m to 6h"),
        (("--since", "7h"), "7h is too short or too long: 2m to 6h"),
        (("--since", "soon"), "is no length of time"),
        (("--prometheus", "prometheus:9090"), "is no address"),
        (("--header", "nothing"), "is no header"),
        (("--config", "/nowhere.yaml"), "/nowhere.yaml"),
    ],
)
def test_a_wrong_command_line_is_bad_usage(args: tuple[str, ...], words: str) -> None:
    code, out, err = run(*args)

    assert (code, out) == (2, "")
    assert words in err


def test_an_unreachable_prometheus_is_reported_with_its_address() -> None:
    code, out, err = run("--prometheus", "http://127.0.0.1:9")

    assert (code, out) == (1, "")
    assert "no answer from http://127.0.0.1:9" in err
    assert "--prometheus says where it is" in err


def test_the_planner_file_sets_the_prometheus_address_and_the_cluster(tmp_path: Path) -> None:
    with empty_prometheus() as (url, asked):
        file = tmp_path / "planner.yaml"
        file.write_text(f"cluster: east\nprometheus: {{url: '{url}'}}\n")
        code, _, err = run("-c", file)

    assert code == 1
    assert 'cluster="east"' in asked[0]
    assert f"{url}: no series of a cluster 'east' of disagg-node are there" in err


@contextmanager
def empty_prometheus() -> Iterator[tuple[str, list[str]]]:
    """Answers that there is nothing; yields its address and what it was asked."""
    asked: list[str] = []

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(parse_qs(urlsplit(self.path).query)["query"][0])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status":"success","data":{"resultType":"matrix","result":[]}}')

        def log_message(self, *_: object) -> None:
            pass

    with serving(Empty) as url:
        yield url, asked


_SHOW = """
import sys
from disagg_cluster.cli.planning import diagnose as command
from disagg_cluster.planner.diagnose.reading.rolling_diagnosis import RollingDiagnosis
from support.diagnosed import FOUND
RollingDiagnosis.diagnose = lambda *_: (FOUND,)
command.diagnose_models(sys.argv[1:], standalone_mode=False)
"""


def on_a_terminal(*args: str, no_colour: bool = False) -> tuple[int, str]:
    """What a terminal gets until Ctrl-C, or the end, whichever is first."""
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[4])}
    process = subprocess.Popen(
        [sys.executable, "-c", _SHOW, *args],
        stdout=theirs,
        stderr=theirs,
        env=environment | ({"NO_COLOR": "1"} if no_colour else {}),
        preexec_fn=take_interrupts,
    )
    os.close(theirs)
    shown = b""
    try:
        while b"decode-0 gpu-8" not in shown:
            shown += os.read(ours, 65_536)
        if "--watch" in args:
            process.send_signal(signal.SIGINT)
        return process.wait(20), shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_watch_on_a_terminal_is_coloured_and_ends_at_ctrl_c() -> None:
    code, shown = on_a_terminal("--watch")

    assert code == 0
    assert shown.index("\x1b[2J") < shown.index("slow GPU")
    assert "\x1b[31mqqqq" in shown


def test_no_colour_is_respected() -> None:
    code, shown = on_a_terminal(no_colour=True)

    assert code == 0
    assert "\x1b[3" not in shown.replace("\x1b[K", "")
