from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from disagg_cluster.telemetry.gpu_processes import KnownParents, foreign_work, shares
from disagg_exporter.model import (
    DeviceReading,
    EngineState,
    EngineStatus,
    ForeignWork,
    GpuShare,
    Role,
)

PARENTS = {11: (10, 1), 12: (11, 10, 1), 21: (20, 1), 31: (30, 1)}


def parents(pid: int) -> tuple[int, ...]:
    return PARENTS.get(pid, ())


def engine(name: str, pid: int | None, *gpus: str) -> EngineStatus:
    return EngineStatus(
        *(name, Role.MIXED, "vllm", "", "llama", gpus, EngineState.READY, True, "", ""), pid=pid
    )


def reading(*ratios: tuple[int, float]) -> DeviceReading:
    return DeviceReading("GPU-0", 0, process_ratios=ratios)


TWO = [engine("a", 10, "GPU-0"), engine("b", 20, "GPU-0")]


def test_engines_on_one_gpu_are_distinguished_by_their_processes() -> None:
    """A worker process may be a grandchild; a foreign process belongs to no engine."""
    told = reading((11, 0.25), (12, 0.25), (20, 0.1), (31, 0.3))

    assert set(shares(TWO, [told], parents)) == {
        GpuShare("a", "GPU-0", 0.5),
        GpuShare("b", "GPU-0", 0.1),
    }


def test_an_engine_alone_on_its_gpu_has_no_process_share() -> None:
    engines = [engine("a", 10, "GPU-0"), engine("b", 20, "GPU-1"), engine("gone", None, "GPU-0")]

    assert shares(engines, [reading((11, 0.25))], parents) == ()


def test_an_unsampled_engine_has_no_share() -> None:
    assert shares(TWO, [DeviceReading("GPU-0", 0)], parents) == ()
    assert shares(TWO, [reading((11, 0.25))], parents) == (GpuShare("a", "GPU-0", 0.25),)


def test_the_summed_share_of_several_processes_is_at_most_1() -> None:
    told = reading((11, 0.75), (12, 0.75))

    assert shares(TWO, [told], parents) == (GpuShare("a", "GPU-0", 1.0),)


GIB = 1 << 30


def listed(*processes: tuple[int, int | None], **more: Any) -> DeviceReading:
    return DeviceReading("GPU-0", 0, process_memory=processes, **more)


def test_processes_of_no_engine_are_foreign() -> None:
    told = listed((11, 4 * GIB), (31, GIB), (0, GIB), process_ratios=((11, 0.5), (31, 0.25)))

    assert foreign_work([engine("a", 10, "GPU-0")], [told], parents) == (
        ForeignWork("GPU-0", 0.25, 2 * GIB),
    )


def test_without_foreign_processes_foreign_work_is_zero_whether_sampled_or_not() -> None:
    engines = [engine("a", 10, "GPU-0")]

    for ratios in (None, (), ((11, 0.5),)):
        told = listed((11, GIB), process_ratios=ratios)
        assert foreign_work(engines, [told], parents) == (ForeignWork("GPU-0", 0.0, 0),)
    assert foreign_work([], [listed()], parents) == (ForeignWork("GPU-0", 0.0, 0),)


def test_foreign_work_without_samples_has_memory_and_no_share() -> None:
    assert foreign_work([], [listed((31, GIB))], parents) == (ForeignWork("GPU-0", None, GIB),)
    told = listed((31, None), (32, GIB), process_ratios=())
    assert foreign_work([], [told], parents) == (ForeignWork("GPU-0", 0.0, None),)


def test_without_listed_processes_there_is_no_foreign_work() -> None:
    told = DeviceReading("GPU-0", 0, process_ratios=((31, 0.5),))

    assert foreign_work([], [told], parents) == ()


@pytest.mark.parametrize("pid", [None, 40])
def test_foreign_work_is_unknown_while_a_ready_engine_has_no_listed_process(
    pid: int | None,
) -> None:
    """Its processes have pids of another namespace: 31 may be one of them."""
    hidden, starting = engine("a", pid, "GPU-0"), engine("a", pid, "GPU-0")
    starting = replace(starting, state=EngineState.STARTING)

    assert foreign_work([hidden], [listed((31, GIB))], parents) == ()
    assert foreign_work([starting], [listed((31, GIB))], parents) != ()


def test_parents_are_read_once_while_a_process_exists() -> None:
    asked: list[int] = []

    def read(pid: int) -> tuple[int, ...]:
        asked.append(pid)
        return parents(pid)

    known = KnownParents(read)
    for processes in (((11, 1), (31, 1)), ((11, 1),), ((11, 1), (31, 1))):
        known.prune([listed(*processes)])
        assert [known(pid) for pid, _ in processes] == [parents(pid) for pid, _ in processes]

    assert asked == [11, 31, 31]
