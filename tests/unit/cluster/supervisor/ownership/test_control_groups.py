"""The limits of workers where a control group is available, and where none is."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from disagg_cluster.config.problems import ConfigError
from disagg_cluster.config.worker import WorkerLimits
from disagg_cluster.nodefile import from_mapping
from disagg_cluster.supervisor.ownership.control_groups import (
    ControlGroup,
    ControlGroups,
    group_root,
)
from disagg_cluster.supervisor.process.child_process import start
from support.children import PYTHON, wait_readable
from support.supervisors import READY, RunningSupervisor, supervised, tiny_spec

LOG = logging.getLogger("test")


def test_a_worker_runs_without_unavailable_limits_and_the_lack_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = WorkerLimits(memory=8 << 30, oom_score_adjust=300)
    groups = ControlGroups(None, "none is delegated to us", LOG)

    async def story(harness: RunningSupervisor) -> None:
        ready = await harness.until(READY)
        score = Path(f"/proc/{ready.pid}/oom_score_adj").read_text()
        assert score.strip() == "300"

    spec = replace(tiny_spec(tmp_path), limits=limits)
    supervised([spec], story, groups=groups)
    [status] = groups.collectors()
    assert (status.collector, status.success) == ("limits:w", False)
    assert "runs without all its limits: none is delegated to us" in caplog.text


def test_the_reason_of_an_oom_kill_names_the_memory_limit(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory pids\n")
    groups = ControlGroups(tmp_path, "", LOG)
    limits = WorkerLimits(memory=1 << 30)
    groups.prepare("w", Path("/run/x/logs/w.log"), limits)
    assert [status.success for status in groups.collectors()] == [True]
    [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert groups.verdict("w", limits) == ""

    (folder / "memory.events").write_text("oom_kill 1\n")
    assert groups.verdict("w", limits) == (
        "it took more memory than its limit of 1073741824 bytes (limits.memory)"
    )
    assert groups.verdict("v", limits) == ""


def test_a_control_group_of_an_earlier_daemon_is_adopted_and_removed(
    tmp_path: Path,
) -> None:
    root, why = group_root()
    if root is None:
        pytest.skip(why)
    log, limits = tmp_path / "logs" / "w.log", WorkerLimits()
    child = start([*PYTHON, "import signal; signal.pause()"], {}, log)
    before, after = ControlGroups(root, "", LOG), ControlGroups(None, "elsewhere", LOG)
    before.prepare("w", log, limits)
    before.enter("w", child, limits)

    after.attach("w", log, child)
    assert child.family.in_group() == {child.pid}
    child.family.kill_group()
    assert wait_readable(child.pidfd)
    child.reap()
    after.leave("w")
    assert not ControlGroup(root, log, "w").path.exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GiB", 80 << 30), ("1.5G", 1_500_000_000), ("512 MiB", 512 << 20), (1 << 30, 1 << 30)],
)
def test_memory_sizes_are_parsed_with_common_units(text: object, size: int) -> None:
    assert from_mapping(file(memory=text), "f").workers[0].limits == WorkerLimits(memory=size)


@pytest.mark.parametrize(
    "limits",
    [{"memory": "80 apples"}, {"memory": 5}, {"tasks": 0}, {"oom_score_adjust": 1001}, {"cpu": 1}],
)
def test_an_invalid_limit_is_rejected(limits: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"workers\[0\]\.limits"):
        from_mapping(file(**limits), "f")


def file(**limits: object) -> dict[str, object]:
    worker = {"name": "w", "role": "mixed", "model": "m", "port": 8100, "limits": limits}
    return {"devices": "cpu", "workers": [worker]}
