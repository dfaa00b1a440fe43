from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from disagg_cluster.cli.workers.logs import followed

PROBE = '(APIServer pid=1) INFO:     127.0.0.1:40000 - "GET /health HTTP/1.1" 200 OK'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "decode-0.log"


def run(log: Path, *arguments: str) -> tuple[int, str, str]:
    command = ["logs", "--run-dir", str(log.parent.parent), *arguments]
    result = CliRunner().invoke(main, command, prog_name="disagg-node")
    return result.exit_code, result.stdout, result.stderr


def test_the_last_lines_leave_out_health_probes_by_default(log: Path) -> None:
    log.write_text(f"one\ntwo\n{PROBE}\nthree\n{PROBE}\n")

    assert run(log, "decode-0", "-n", "2") == (0, "two\nthree\n", "")
    assert run(log, "decode-0", "--probes", "-n", "1") == (0, f"{PROBE}\n", "")


def test_json_has_an_object_per_line_with_its_timestamp(log: Path) -> None:
    log.write_text("2026-11-23T10:05:01Z ready\n  at line 3\n")

    code, out, _ = run(log, "decode-0", "--json")

    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {
            "worker": "decode-0",
            "written_at": "2026-11-23T10:05:01+00:00",
            "line": "2026-11-23T10:05:01Z ready",
        },
        {"worker": "decode-0", "written_at": None, "line": "  at line 3"},
    ]


def test_a_failed_health_probe_is_shown(log: Path) -> None:
    wrong = PROBE.replace("200 OK", "503 Service Unavailable")
    log.write_text(f"{wrong}\n")

    assert run(log, "decode-0") == (0, f"{wrong}\n", "")


def test_since_includes_matching_lines_of_the_rotated_log(log: Path) -> None:
    now = datetime.now()
    old, new = (f"INFO {now - timedelta(minutes=m):%m-%d %H:%M:%S} [x] {m}" for m in (60, 2))
    log.with_name("decode-0.log.1").write_text(f"{old}\n{new}\n")
    log.write_text("goes on\n")

    assert run(log, "decode-0", "--since", "5m") == (0, f"{new}\ngoes on\n", "")


def test_a_number_of_lines_reaches_into_the_rotated_log(log: Path) -> None:
    now = f"INFO {datetime.now():%m-%d %H:%M:%S} [x] now"
    log.with_name("decode-0.log.1").write_text(f"{now}\none\n")
    log.write_text("two\n")

    assert run(log, "decode-0", "--since", "5m", "-n", "2") == (0, "one\ntwo\n", "")
    assert run(log, "decode-0", "-n", "2") == (0, "one\ntwo\n", "")


def test_since_on_a_log_without_timestamps_is_explained(log: Path) -> None:
    log.write_text("no time here\n")

    assert run(log, "decode-0", "--since", "5m") == (
        0,
        "",
        "decode-0: no line says that it was written in the last 5m; without --since the last "
        "lines are shown\n",
    )


def test_an_unknown_worker_is_answered_with_the_names_of_the_workers(log: Path) -> None:
    log.write_text("")

    code, out, err = run(log, "decode0")

    assert (code, out) == (1, "")
    assert err == "disagg-node: no log of 'decode0': did you mean decode-0? there are decode-0\n"


def test_characters_that_the_locale_lacks_are_written_as_question_marks(log: Path) -> None:
    log.write_text("Loading: 40%|████ ü\n")
    command = [sys.executable, "-m", "disagg_cluster.cli", "logs", log.stem]
    command += ["--run-dir", str(log.parents[1])]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}

    shown = subprocess.run(
        [*command, "--run-dir", str(log.parents[1])],
        env=environment,
        capture_output=True,
        check=False,
    )

    assert (shown.returncode, shown.stderr) == (0, b"")
    assert shown.stdout.decode("latin-1") == "Loading: 40%|???? ü\n"


def test_a_name_too_long_for_a_file_is_answered_with_the_names_of_the_workers(log: Path) -> None:
    log.touch()

    code, _, told = run(log, "x" * 300)

    assert code == 1
    assert "there are decode-0" in told


def test_a_path_outside_the_log_folder_is_refused(log: Path) -> None:
    log.write_text("")
    (log.parent.parent / "secret.log").write_text("hunter2\n")

    assert run(log, "../secret")[:2] == (1, "")


def test_followed_lines_are_whole_and_a_truncated_log_is_read_from_its_start(
    log: Path,
) -> None:
    log.write_text("before\n")
    texts = iter(("before\nhalf", "before\nhalf a line\n", "anew\n"))

    def wait(_seconds: float) -> None:
        log.write_text(next(texts))

    lines = followed(log, log.stat().st_size, wait)

    assert [*itertools.islice(lines, 2)] == ["half a line", "anew"]
