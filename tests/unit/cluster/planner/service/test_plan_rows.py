from __future__ import annotations

from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.plan.gpu_plan import (
    ExpectedCost,
    GpuPlan,
    ModelPlan,
    PlanRow,
    RoleCourse,
    RolePlan,
)
from disagg_cluster.planner.service.plan_rows import write_plan
from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.model import Role

H200 = "NVIDIA H200"
DECODE = ("llama", "", H200, "decode")


def decode_on(gpus: int, engines: int, needed: int) -> RolePlan:
    """Engines of one size: present ones and needed ones."""
    row = PlanRow(Role.DECODE, H200, 300.0, 0.9, engines * gpus, needed * gpus, needed * gpus, 0)
    course = RoleCourse(0.0, 300.0, {0.9: (row.needed,)}, (row.recommended,))
    return RolePlan(Role.DECODE, H200, gpus, engines, engines, (row,), course, ("why",))


def written(*roles: RolePlan, running: dict[CostKey, int]) -> MetricRows:
    cost = ExpectedCost(0.0, 0.0, 1.0, None)
    model = ModelPlan("llama", "", 3600.0, roles, (), "", cost, cost)
    rows = MetricRows()
    write_plan(rows, GpuPlan(0.0, 900.0, (model,), (), ()), running)
    return rows


def test_engines_of_two_sizes_on_gpus_of_one_name_add_up() -> None:
    running = {
        CostKey("llama", "", Role.DECODE, H200, 4): 2,
        CostKey("llama", "", Role.DECODE, H200, 8): 1,
    }

    rows = written(decode_on(4, 2, needed=3), decode_on(8, 1, needed=1), running=running).samples

    gpus = rows["disagg_plan_gpus"]
    assert gpus[*DECODE, "current", "", ""] == 16
    assert gpus[*DECODE, "needed", "5m", "0.9"] == 20
    assert gpus[*DECODE, "recommended", "5m", ""] == 20
    assert rows["disagg_plan_shortfall_gpus"][*DECODE, "5m", "0.9"] == 4


def test_all_running_engines_count_as_current_even_if_the_plan_knows_only_some() -> None:
    """Engines without learned costs are in no pool of the plan."""
    running = {
        CostKey("llama", "", Role.DECODE, H200, 4): 2,
        CostKey("llama", "", Role.DECODE, H200, 8): 1,
    }

    rows = written(decode_on(4, 2, needed=2), running=running).samples

    assert rows["disagg_plan_gpus"][*DECODE, "current", "", ""] == 16


def test_engines_of_the_planner_file_count_if_none_are_reported() -> None:
    rows = written(decode_on(4, 2, needed=2), running={}).samples

    assert rows["disagg_plan_gpus"][*DECODE, "current", "", ""] == 8
