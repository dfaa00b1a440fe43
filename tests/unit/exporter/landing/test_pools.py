from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_exporter.landing.pools import ModelPools, model_pools
from disagg_exporter.model import EngineCapacity, EngineState, Role, Snapshot
from support.snapshots import GPU_0, GPU_1, golden_snapshot


def pools_of(*engines: tuple[str, Role, str, float | None]) -> ModelPools:
    """The pools of engines of one model: name, role, GPU, and capacity used."""
    golden = golden_snapshot()
    (found,) = model_pools(snapshot_of(golden, engines))
    return found


def snapshot_of(
    golden: Snapshot, engines: tuple[tuple[str, Role, str, float | None], ...]
) -> Snapshot:
    return replace(
        golden,
        engines=tuple(
            replace(
                golden.engines[0],
                engine=name,
                role=role,
                devices=(gpu,),
                state=EngineState.READY,
            )
            for name, role, gpu, _ in engines
        ),
        capacities=tuple(EngineCapacity(name, used) for name, _, _, used in engines),
    )


def test_a_gpu_that_engines_share_is_divided_as_in_the_metrics() -> None:
    """One engine has a GPU of its own and is nearly full; two share another and hardly work."""
    (pool,) = pools_of(
        ("d-0", Role.DECODE, GPU_0, 0.9),
        ("d-1", Role.DECODE, GPU_1, 0.1),
        ("d-2", Role.DECODE, GPU_1, 0.1),
    ).pools

    assert pool.gpus == pytest.approx(2.0)
    assert pool.used_ratio == pytest.approx((0.9 + 0.1 / 2 + 0.1 / 2) / 2)


def test_pools_that_share_a_gpu_have_no_more_than_it_together() -> None:
    pools = pools_of(("p", Role.PREFILL, GPU_0, 0.8), ("d", Role.DECODE, GPU_0, 0.3)).pools

    assert [(pool.role, pool.gpus) for pool in pools] == [
        (Role.PREFILL, pytest.approx(0.5)),
        (Role.DECODE, pytest.approx(0.5)),
    ]
