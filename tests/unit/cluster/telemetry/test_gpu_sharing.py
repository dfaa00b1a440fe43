from __future__ import annotations

from disagg_cluster.telemetry.snapshot import shares
from disagg_exporter.model import (
    DeviceReading,
    EngineState,
    EngineStatus,
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


def test_engines_on_one_gpu_are_told_apart_by_their_processes() -> None:
    """A worker process may be a grandchild; a stranger on the GPU is nobody's."""
    told = reading((11, 0.25), (12, 0.25), (20, 0.1), (31, 0.3))

    assert set(shares(TWO, [told], parents)) == {
        GpuShare("a", "GPU-0", 0.5),
        GpuShare("b", "GPU-0", 0.1),
    }


def test_an_engine_that_has_a_gpu_to_itself_needs_no_telling() -> None:
    engines = [engine("a", 10, "GPU-0"), engine("b", 20, "GPU-1"), engine("gone", None, "GPU-0")]

    assert shares(engines, [reading((11, 0.25))], parents) == ()


def test_what_was_not_sampled_has_no_share() -> None:
    assert shares(TWO, [DeviceReading("GPU-0", 0)], parents) == ()
    assert shares(TWO, [reading((11, 0.25))], parents) == (GpuShare("a", "GPU-0", 0.25),)


def test_samples_of_several_processes_are_no_more_than_the_whole() -> None:
    told = reading((11, 0.75), (12, 0.75))

    assert shares(TWO, [told], parents) == (GpuShare("a", "GPU-0", 1.0),)
