"""What is left of a killed demo is ended; nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from disagg_cluster.demo.sweeper import belonging_to, sweep, swept
from disagg_cluster.host.processes.process_traits import WORKER_MARK

SAYS_AND_WAITS = [sys.executable, "-uc", "print('here'); input()"]


@pytest.fixture
def children() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(
    stack: ExitStack, output: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process that runs indefinitely, with its output in a file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    file = stack.enter_context(output.open("wb"))
    child = subprocess.Popen(
        SAYS_AND_WAITS,
        stdin=subprocess.PIPE,
        stdout=file,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    stack.enter_context(child)
    stack.callback(child.kill)
    return child


def test_processes_writing_into_the_folder_are_ended_and_it_is_removed(
    tmp_path: Path, children: ExitStack
) -> None:
    folder = tmp_path / "demo"
    inside = started(children, folder / "run" / "logs" / "prefill-0.log")
    outside = started(children, tmp_path / "demo-2" / "prefill-0.log")

    sweep(folder)

    assert inside.wait() == -9
    assert outside.poll() is None
    assert not folder.exists()


def test_a_worker_process_belongs_to_the_demo_by_its_mark(
    tmp_path: Path, children: ExitStack
) -> None:
    folder = tmp_path / "demo"
    mark = {WORKER_MARK: str(folder / "logs" / "decode-0.log")}
    piped = started(children, tmp_path / "elsewhere", mark)
    while not (tmp_path / "elsewhere").read_bytes():
        assert piped.poll() is None

    assert belonging_to(folder) == [piped.pid]


def test_the_sweeper_acts_only_after_the_end_of_the_demo(
    tmp_path: Path, children: ExitStack
) -> None:
    folder = tmp_path / "demo"
    with swept(folder):
        child = started(children, folder / "prefill-0.log")
        assert child.poll() is None

    assert child.wait() == -9
    assert not folder.exists()
