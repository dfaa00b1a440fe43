from __future__ import annotations

import itertools
import json
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


def test_the_last_lines_are_the_engines_own(log: Path) -> None:
    log.write_text(f"one\ntwo\n{PROBE}\nthree\n{PROBE}\n")

    assert run(log, "decode-0", "-n", "2") == (0, "two\nthree\n", "")
    assert run(log, "decode-0", "--probes", "-n", "1") == (0, f"{PROBE}\n", "")


def test_for_programs_each_line_is_an_object_with_when_it_was_written(log: Path) -> None:
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


def test_a_question_that_went_wrong_is_the_engines_word(log: Path) -> None:
    wrong = PROBE.replace("200 OK", "503 Service Unavailable")
    log.write_text(f"{wrong}\n")

    assert run(log, "decode-0") == (0, f"{wrong}\n", "")


def test_since_a_moment_through_the_older_part(log: Path) -> None:
    now = datetime.now()
    old, new = (f"INFO {now - timedelta(minutes=m):%m-%d %H:%M:%S} [x] {m}" for m in (60, 2))
    log.with_name("decode-0.log.1").write_text(f"{old}\n{new}\n")
    log.write_text("goes on\n")

    assert run(log, "decode-0", "--since", "5m") == (0, f"{new}\ngoes on\n", "")


def test_so_many_lines_of_a_span_and_through_a_log_that_was_just_rotated(log: Path) -> None:
    now = f"INFO {datetime.now():%m-%d %H:%M:%S} [x] now"
    log.with_name("decode-0.log.1").write_text(f"{now}\none\n")
    log.write_text("two\n")

    assert run(log, "decode-0", "--since", "5m", "-n", "2") == (0, "one\ntwo\n", "")
    assert run(log, "decode-0", "-n", "2") == (0, "one\ntwo\n", "")


def test_a_log_without_times_says_so(log: Path) -> None:
    log.write_text("no time here\n")

    assert run(log, "decode-0", "--since", "5m") == (
        0,
        "",
        "decode-0: no line says that it was written in the last 5m; without --since the last "
        "lines are shown\n",
    )


def test_a_name_that_is_not_there_is_answered_with_those_that_are(log: Path) -> None:
    log.write_text("")

    code, out, err = run(log, "decode0")

    assert (code, out) == (1, "")
    assert err == "disagg-node: no log of 'decode0': did you mean decode-0? there are decode-0\n"


def test_another_file_is_no_log_of_a_worker(log: Path) -> None:
    log.write_text("")
    (log.parent.parent / "secret.log").write_text("hunter2\n")

    assert run(log, "../secret")[:2] == (1, "")


def test_what_is_added_is_followed_line_by_line_and_a_log_cut_short_from_its_beginning(
    log: Path,
) -> None:
    log.write_text("before\n")
    texts = iter(("before\nhalf", "before\nhalf a line\n", "anew\n"))

    def wait(_seconds: float) -> None:
        log.write_text(next(texts))

    lines = followed(log, log.stat().st_size, wait)

    assert [*itertools.islice(lines, 2)] == ["half a line", "anew"]
