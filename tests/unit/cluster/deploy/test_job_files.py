"""dcgm-exporter's job mapping files: content, ownership, removal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cluster.deploy.job_files import AGAIN_SECONDS, JobFiles, job_files
from disagg_exporter.model import Device, Role
from support.umask import umask

GPU0 = Device("GPU-0", 0, "H100", "nvidia0")
GPU1 = Device("GPU-1", 1, "H100", "nvidia1")
MIG3 = Device("MIG-3", 1, "H100", "nvidia1/gi3", weight=3 / 7)
MIG3_CI1 = Device("MIG-3-1", 1, "H100", "nvidia1/gi3/ci1", weight=1 / 7)
CPU = Device("cpu-decode-0", 0, "cpu", "cpu")


def test_a_gpu_is_named_by_its_number_and_an_instance_by_both() -> None:
    roles = [(GPU0, Role.PREFILL), (MIG3, Role.DECODE)]

    assert job_files(roles) == {"0": "prefill\n", "1.3": "decode\n"}


@pytest.mark.parametrize("role", [Role.NONE, Role.UNKNOWN])
def test_an_unknown_role_gives_no_label(role: Role) -> None:
    assert job_files([(GPU0, role)]) == {"0": ""}


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        ((Role.PREFILL, Role.PREFILL), "prefill\n"),
        ((Role.PREFILL, Role.DECODE), "mixed\n"),
        ((Role.NONE, Role.DECODE), "decode\n"),
        ((Role.DECODE, Role.NONE), "decode\n"),
    ],
)
def test_compute_instances_of_one_name_have_one_line(roles: tuple[Role, Role], text: str) -> None:
    assert job_files(zip((MIG3, MIG3_CI1), roles, strict=True)) == {"1.3": text}


def test_a_pseudo_device_has_no_file() -> None:
    assert job_files([(CPU, Role.DECODE)]) == {}


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def files(tmp_path: Path, clock: Clock) -> Iterator[JobFiles]:
    files = JobFiles(tmp_path, clock=clock, wall=lambda: 5.0)
    yield files
    files.close()


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_files_follow_the_roles_and_are_removed_in_the_end(files: JobFiles, tmp_path: Path) -> None:
    files.show([(GPU0, Role.PREFILL), (GPU1, Role.NONE)])
    assert texts(tmp_path) == {"0": "prefill\n", "1": ""}

    files.show([(GPU0, Role.DECODE), (GPU1, Role.NONE)])
    assert texts(tmp_path) == {"0": "decode\n", "1": ""}
    assert files.status().success

    files.close()
    assert texts(tmp_path) == {}


def test_a_dcgm_exporter_of_another_user_may_read_them(files: JobFiles, tmp_path: Path) -> None:
    """Under the umask of the service."""
    with umask(0o077):
        files.show([(GPU0, Role.PREFILL)])

    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_a_role_that_stays_is_not_written_again(files: JobFiles, tmp_path: Path) -> None:
    files.show([(GPU0, Role.PREFILL)])
    inode = (tmp_path / "0").stat().st_ino

    files.show([(GPU0, Role.PREFILL)])

    assert (tmp_path / "0").stat().st_ino == inode


def test_a_file_of_a_job_scheduler_is_not_changed(
    files: JobFiles, tmp_path: Path, clock: Clock
) -> None:
    (tmp_path / "0").write_text("slurm-4711\n")

    files.show([(GPU0, Role.PREFILL), (GPU1, Role.DECODE)])
    assert texts(tmp_path) == {"0": "slurm-4711\n", "1": "decode\n"}
    assert not files.status().success

    (tmp_path / "0").unlink()
    clock.seconds += AGAIN_SECONDS + 1
    files.show([(GPU0, Role.PREFILL), (GPU1, Role.DECODE)])
    assert texts(tmp_path) == {"0": "prefill\n", "1": "decode\n"}
    assert files.status().success


def test_a_file_that_was_replaced_meanwhile_is_not_removed(files: JobFiles, tmp_path: Path) -> None:
    files.show([(GPU0, Role.PREFILL)])
    (tmp_path / "0").write_text("slurm-4711\n")

    files.close()

    assert texts(tmp_path) == {"0": "slurm-4711\n"}


def test_files_of_a_killed_daemon_are_taken_over(files: JobFiles, tmp_path: Path) -> None:
    (tmp_path / "0").write_text("decode\n")
    (tmp_path / ".0.part").write_text("half")

    files.show([(GPU0, Role.PREFILL)])

    assert texts(tmp_path) == {"0": "prefill\n"}


def test_a_link_in_the_way_is_not_followed(files: JobFiles, tmp_path: Path) -> None:
    target = tmp_path.parent / "target"
    target.write_text("")
    (tmp_path / "0").symlink_to(target)
    (tmp_path / ".1.part").symlink_to(target)

    files.show([(GPU0, Role.PREFILL), (GPU1, Role.PREFILL)])

    assert target.read_text() == ""
    assert not files.status().success


def test_a_missing_folder_is_reported_and_retried(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    files = JobFiles(tmp_path / "later", clock=clock)
    for _ in range(3):
        files.show([(GPU0, Role.PREFILL)])
    assert len(caplog.records) == 1

    (tmp_path / "later").mkdir()
    clock.seconds += AGAIN_SECONDS + 1
    files.show([(GPU0, Role.PREFILL)])

    assert texts(tmp_path / "later") == {"0": "prefill\n"}
