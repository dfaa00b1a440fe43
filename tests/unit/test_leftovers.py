from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.leftovers import MARK, end_leftovers

LEAVES = """
import os, signal, subprocess
def test_leaves():
    global left
    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A process with the mark of another run."""
    return subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: str(tmp_path)})


def test_a_process_marked_by_a_run_is_ended_and_named(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with sleeper:
        assert end_leftovers("another run") == ()
        [left] = end_leftovers(str(tmp_path))

    assert left.pid == sleeper.pid
    assert left.test.startswith("tests/unit/test_leftovers.py::test_a_process_marked_by_a_run")
    assert left.argv == ("sleep", "600")


@pytest.mark.parametrize("last_words", ["", "    os.kill(os.getpid(), signal.SIGTERM)\n"])
def test_a_run_that_leaves_a_process_behind_fails_and_names_it(
    tmp_path: Path, last_words: str
) -> None:
    """Also for a run that is ended by SIGTERM, as by `timeout`."""
    story = tmp_path / "test_story.py"
    story.write_text(LEAVES + last_words)
    options = ("-p", "support.leftovers", "-p", "no:cacheprovider", "-q", "-c", os.devnull)
    told = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", str(story)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert told.returncode != 0
    assert "left behind and killed: process" in told.stdout
    assert "test_story.py::test_leaves (call): sleep 600" in told.stdout
