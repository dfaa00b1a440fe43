"""Step times of a model's engines on GPUs of one name, in every role to compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.capacity.engine_costs import EngineCosts
from disagg_cluster.planner.capacity.learned.learned_costs import LearnedCosts
from disagg_cluster.planner.capacity.learned.profile_costs import ProfileCosts
from disagg_cluster.planner.capacity.priced_costs import PricedCosts
from disagg_cluster.planner.history.load_history import LoadKey
from disagg_cluster.planner.separation.engines import Engines
from disagg_cluster.planner.settings.sections import ModelSection, WorkerSection
from disagg_exporter.model import Role

# Roles whose worker's limits an engine has, in order, if none of its size is offered for its role.
_LIMITS_FROM = {
    Role.MIXED: (Role.MIXED, Role.DECODE, Role.PREFILL),
    Role.PREFILL: (Role.PREFILL, Role.MIXED, Role.DECODE),
    Role.DECODE: (Role.DECODE, Role.MIXED, Role.PREFILL),
}


@dataclass(frozen=True, slots=True)
class SeparationCosts:
    """Engines that could be run on GPUs of one name.

    Mixed engines that run have learned the times of steps of any content, and so those of engines
    of each role. Workers of the planner file represent their size in every role, as prices do not
    depend on the role. The times of a size come from one source for all roles, so that its errors
    affect both sides alike.

    Args:
        section: The model's section of the planner file.
        learned: Step times that mixed engines of the model learned, by GPU name and GPUs.
    """

    section: ModelSection
    learned: Mapping[tuple[str, int], EngineCosts]

    @classmethod
    def of(cls, key: LoadKey, section: ModelSection, engines: ClusterEngines) -> SeparationCosts:
        """The costs of one model."""
        learned = {
            (kind.gpu_name, kind.gpus): costs
            for kind in engines.of_model(key)
            if kind.role is Role.MIXED
            and isinstance(costs := engines.costs.get(kind), LearnedCosts)
        }
        return cls(section, learned)

    @property
    def gpu_names(self) -> list[str]:
        """The names of GPUs with known step times."""
        offered = {each.gpu_name for each in self.section.workers}
        return sorted({name for name, _ in self.learned} | offered)

    def engines(self, gpu_name: str) -> Engines:
        """All known sizes, in each role."""
        mixed, prefill, decode = (
            [self._with_kv_bytes(costs) for costs in self._of(gpu_name, role)]
            for role in (Role.MIXED, Role.PREFILL, Role.DECODE)
        )
        return Engines(mixed, prefill, decode)

    def of_pools(self, gpu_name: str, prefill_gpus: int, decode_gpus: int) -> Engines:
        """Mixed engines of all sizes, prefill and decode engines of the given sizes only."""
        known = self.engines(gpu_name)
        return Engines(
            known.mixed,
            [each for each in known.prefill if each.shape.gpus == prefill_gpus],
            [each for each in known.decode if each.shape.gpus == decode_gpus],
        )

    def _of(self, gpu_name: str, role: Role) -> Iterator[EngineCosts]:
        workers = [each for each in self.section.workers if each.gpu_name == gpu_name]
        sizes = {gpus for name, gpus in self.learned if name == gpu_name}
        for gpus in sorted(sizes | {each.gpus for each in workers}):
            known = self.learned.get((gpu_name, gpus))
            yield known or _worker([each for each in workers if each.gpus == gpus], role).costs()

    def _with_kv_bytes(self, costs: EngineCosts) -> EngineCosts:
        """With the KV bytes of the planner file, else of the price table of one of its workers."""
        size = self.section.kv_bytes_per_token or costs.shape.kv_bytes_per_token
        if size is None and self.section.workers:
            size = self.section.workers[0].costs().shape.kv_bytes_per_token
        if isinstance(costs, LearnedCosts | PricedCosts | ProfileCosts):
            return replace(costs, shape=replace(costs.shape, kv_bytes_per_token=size))
        return costs


def _worker(workers: Sequence[WorkerSection], role: Role) -> WorkerSection:
    return min(workers, key=lambda each: _LIMITS_FROM[role].index(each.role))
