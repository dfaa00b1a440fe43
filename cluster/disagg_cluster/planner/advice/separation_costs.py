"""What engines of one model on GPUs of one name would take, in every role that is asked about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from disagg_cluster.planner.advice.demands import ClusterEngines
from disagg_cluster.planner.capacity.engine_costs import EngineCosts
from disagg_cluster.planner.capacity.learned.learned_costs import LearnedCosts
from disagg_cluster.planner.capacity.learned.profile_costs import ProfileCosts
from disagg_cluster.planner.capacity.priced_costs import PricedCosts
from disagg_cluster.planner.history.load_history import LoadKey
from disagg_cluster.planner.separation.engines import Engines
from disagg_cluster.planner.settings.sections import ModelSection, WorkerSection
from disagg_exporter.model import Role

# Whose limits an engine of a role has where no worker of its size is offered for that role.
_NEXT = {
    Role.MIXED: (Role.MIXED, Role.DECODE, Role.PREFILL),
    Role.PREFILL: (Role.PREFILL, Role.MIXED, Role.DECODE),
    Role.DECODE: (Role.DECODE, Role.MIXED, Role.PREFILL),
}


@dataclass(frozen=True, slots=True)
class SeparationCosts:
    """Engines that could be run on GPUs of one name.

    Mixed engines that run know what their steps take whatever is in them, and so what those of
    each role would. Workers of the planner file stand for their size in every role: prices do not
    depend on it. What a size takes comes from one source in all roles, so that what is wrong with
    it is wrong on both sides.

    Args:
        told: What the planner file says of the model.
        learned: What mixed engines of the model have learned, by GPU name and GPUs.
    """

    told: ModelSection
    learned: Mapping[tuple[str, int], EngineCosts]

    @classmethod
    def of(cls, key: LoadKey, told: ModelSection, engines: ClusterEngines) -> SeparationCosts:
        """Those of one model."""
        learned = {
            (kind.gpu_name, kind.gpus): costs
            for kind in engines.of_model(key)
            if kind.role is Role.MIXED
            and isinstance(costs := engines.costs.get(kind), LearnedCosts)
        }
        return cls(told, learned)

    @property
    def gpu_names(self) -> list[str]:
        """Those of which anything is known."""
        known = {name for name, _ in self.learned} | {each.gpu_name for each in self.told.workers}
        return sorted(known)

    def engines(self, gpu_name: str) -> Engines:
        """All sizes that are known, in each role."""
        mixed, prefill, decode = (
            [self._with_kv_bytes(costs) for costs in self._of(gpu_name, role)]
            for role in (Role.MIXED, Role.PREFILL, Role.DECODE)
        )
        return Engines(mixed, prefill, decode)

    def of_pools(self, gpu_name: str, prefill_gpus: int, decode_gpus: int) -> Engines:
        """Mixed engines of all sizes, prefill and decode engines of these alone."""
        all_of = self.engines(gpu_name)
        return Engines(
            all_of.mixed,
            [each for each in all_of.prefill if each.shape.gpus == prefill_gpus],
            [each for each in all_of.decode if each.shape.gpus == decode_gpus],
        )

    def _of(self, gpu_name: str, role: Role) -> Iterator[EngineCosts]:
        workers = [each for each in self.told.workers if each.gpu_name == gpu_name]
        sizes = {gpus for name, gpus in self.learned if name == gpu_name}
        for gpus in sorted(sizes | {each.gpus for each in workers}):
            known = self.learned.get((gpu_name, gpus))
            yield known or _worker([each for each in workers if each.gpus == gpus], role).costs()

    def _with_kv_bytes(self, costs: EngineCosts) -> EngineCosts:
        """The bytes of the planner file, else those of the price table of one of its workers."""
        size = self.told.kv_bytes_per_token or costs.shape.kv_bytes_per_token
        if size is None and self.told.workers:
            size = self.told.workers[0].costs().shape.kv_bytes_per_token
        if isinstance(costs, LearnedCosts | PricedCosts | ProfileCosts):
            return replace(costs, shape=replace(costs.shape, kv_bytes_per_token=size))
        return costs


def _worker(workers: Sequence[WorkerSection], role: Role) -> WorkerSection:
    return min(workers, key=lambda each: _NEXT[role].index(each.role))
