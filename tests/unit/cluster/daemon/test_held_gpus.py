"""The GPUs of engines that outlived their daemon, by its journal or by how they were started."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cluster.daemon.held_gpus import gpus_held, with_unrecorded
from disagg_cluster.host.processes.process_traits import WORKER_MARK
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.supervisor.process.child_process import start
from support.children import PYTHON, wait_readable
from support.node_files import gpu

FOUR = tuple(gpu(index) for index in range(4))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.logs.mkdir(parents=True)
    return folder


@pytest.fixture(params=[True, False])
def unrecorded_engine(folder: RunFolder, request: pytest.FixtureRequest) -> Iterator[bool]:
    """An engine on two GPUs that no journal names; whether it bears the mark of a worker."""
    visible = {"CUDA_VISIBLE_DEVICES": "3,1"}
    marked = {WORKER_MARK: str(folder.log("w"))} if request.param else {}
    argv = [*PYTHON, "import signal; print(flush=True); signal.pause()"]
    child = start(argv, {**os.environ, **visible, **marked}, folder.log("w"))
    while not folder.log("w").stat().st_size:
        signal.sigtimedwait([], 0.01)
    yield request.param
    child.signal_group(signal.SIGKILL)
    assert wait_readable(child.pidfd)
    child.reap()


def test_an_engine_that_no_journal_names_holds_the_gpus_that_it_was_started_with(
    folder: RunFolder, unrecorded_engine: bool
) -> None:
    expected = {"GPU-0003": "w", "GPU-0001": "w"} if unrecorded_engine else {}

    assert gpus_held(folder, FOUR) == expected


def test_a_process_that_nothing_names_gets_an_entry_or_is_only_reported(
    folder: RunFolder, unrecorded_engine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Only its mark tells it from a person's process that writes there."""
    found = with_unrecorded((), (), folder, FOUR)

    expected = [("w", ("GPU-0003", "GPU-0001"))] if unrecorded_engine else []
    assert [(entry.worker, entry.tag.gpus) for entry in found] == expected
    reported = "writes the log of w, which is neither in the journal nor in the node file"
    assert (reported in caplog.text) is not unrecorded_engine


def test_a_run_folder_that_is_not_there_yet_holds_no_gpus(tmp_path: Path) -> None:
    assert gpus_held(RunFolder(tmp_path / "new"), FOUR) == {}
