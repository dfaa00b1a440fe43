from __future__ import annotations

from disagg_cluster.planner.advice.cluster_engines import engines_of
from disagg_cluster.planner.capacity.learned.cost_families import FAMILIES, CostFamilies, CostKey
from disagg_exporter.model import Role

KIND = CostKey("llama", "chat", Role.PREFILL, "GPU", 1)


def families(**drained: float) -> CostFamilies:
    """Two prefill workers of one node, as a daemon exports them."""
    workers = ("p0", "p1")
    of = {name: {"cluster": "c", "node": "n", "engine": name} for name in workers}
    info = {"role": "prefill", "model_name": "llama"}
    by_worker = {name: {"cluster": "c", "node": "n", "worker": name} for name in workers}
    return CostFamilies(
        {name: [] for name in FAMILIES}
        | {
            "disagg_engine_info": [({**of[name], **info}, 1.0) for name in workers],
            "disagg_gpu_assignment_info": [
                ({**of[name], "gpu": name, "engine_namespace": "chat"}, 1.0) for name in workers
            ],
            "disagg_gpu_info": [
                ({"cluster": "c", "node": "n", "gpu": name, "gpu_name": "GPU"}, 1.0)
                for name in workers
            ],
            "disagg_worker_state": [(by_worker[name], 1.0) for name in workers],
            "disagg_worker_drained": [(by_worker[name], value) for name, value in drained.items()],
        }
    )


def test_a_worker_drained_by_hand_is_no_engine_of_its_pool() -> None:
    """It serves nobody, though it is ready and empty."""
    found = engines_of(families(p0=0.0, p1=1.0))

    assert found.running == {KIND: 1}
    assert [each.worker for each in found.workers] == ["p0"]


def test_workers_of_daemons_that_tell_no_drains_all_count() -> None:
    assert engines_of(families()).running == {KIND: 2}
