"""Whether separating prefill from decode, or merging them, would pay for each model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.advice.interference import Interference
from disagg_cluster.planner.advice.recent_load import LEAST_REQUESTS, RecentLoad, recent_load
from disagg_cluster.planner.advice.separation_costs import SeparationCosts
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.plan.model_demand import RunningEngines
from disagg_cluster.planner.separation.engines import Engines, missing_inputs
from disagg_cluster.planner.separation.kv_link import KvLink
from disagg_cluster.planner.separation.separation import (
    merging,
    separation,
)
from disagg_cluster.planner.separation.verdict import (
    InterferenceSeconds,
    SeparationVerdict,
    UndecidedSeparation,
)
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_exporter.model import Role


class Today(StrEnum):
    """How the GPUs in question run now."""

    MIXED = "mixed"
    SEPARATE = "separate"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class GpuSeparation:
    """The answer for GPUs of one name; `gpus` is None if their number is not known."""

    today: Today
    gpu_name: str
    gpus: int | None
    verdict: SeparationVerdict | UndecidedSeparation


@dataclass(frozen=True, slots=True)
class ModelSeparation:
    """One model: its requests, their targets, and the answers."""

    key: LoadKey
    load: RecentLoad | None
    targets: Targets
    answers: tuple[GpuSeparation, ...]

    @property
    def of_mixed(self) -> tuple[GpuSeparation, ...]:
        """The answers about engines that run mixed today."""
        return tuple(each for each in self.answers if each.today is Today.MIXED)

    def holds(self, requests_per_second: float) -> bool | None:
        """Whether this rate serves its busy times; None if GPUs of several names share them."""
        if self.load is None or len(self.answers) > 1:
            return None
        return requests_per_second >= self.load.peak_requests_per_second


@dataclass(frozen=True, slots=True)
class SeparationAdvisor:
    """Gives advice for every model of a cluster.

    Args:
        config: The planner file.
        engines: The engines that run.
        interference: What mixed steps cost them.
        gpus: A number of GPUs to consider instead of those that run.
        load_factor: Factor of the number of requests to assume.
    """

    config: PlannerConfig
    engines: ClusterEngines
    interference: Interference
    gpus: int | None = None
    load_factor: float = 1.0

    def advise(self, history: LoadHistory) -> ModelSeparation:
        """The answers for one model."""
        key = history.key
        section = self.config.of_model(key.model_name, key.engine_namespace)
        load = recent_load(history)
        inputs = _ModelInputs(
            SeparationCosts.of(key, section, self.engines),
            None if load is None else load.times(self.load_factor),
            self.config.targets_of(section),
            self._link(),
            self.engines.unlearned(key.model_name, key.engine_namespace),
        )
        running = self.engines.of_model_or_file(key, section)
        answers = self._answers(inputs, key, running)
        return ModelSeparation(key, inputs.load, inputs.targets, answers)

    def _answers(
        self, inputs: _ModelInputs, key: LoadKey, running: Sequence[RunningEngines]
    ) -> tuple[GpuSeparation, ...]:
        if self.gpus is not None:
            names = sorted({each.gpu_name for each in running}) or inputs.costs.gpu_names
            assumed = [inputs.mixed(Today.ASSUMED, name, self.gpus) for name in names]
            return tuple(assumed) or (
                _unknown("engines that run, or `workers` in the planner file", self.gpus),
            )
        mixed: dict[str, int] = defaultdict(int)
        for each in running:
            if each.role is Role.MIXED:
                mixed[each.gpu_name] += each.gpus * each.engines
        answers = [
            inputs.mixed(Today.MIXED, name, gpus, self._interference(key, name))
            for name, gpus in mixed.items()
        ]
        pools = [each for each in running if each.role in (Role.PREFILL, Role.DECODE)]
        if pools:
            answers.append(inputs.pools(pools))
        return tuple(answers) or (_unknown("engines that run, or `--gpus`", None),)

    def _interference(self, key: LoadKey, gpu_name: str) -> InterferenceSeconds | None:
        measured = [
            seconds
            for kind, seconds in self.interference.items()
            if (kind.model_name, kind.engine_namespace) == (key.model_name, key.engine_namespace)
            and (kind.role, kind.gpu_name) == (Role.MIXED, gpu_name)
        ]
        if not measured:
            return None
        return InterferenceSeconds(
            sum(each.lost_seconds for each in measured),
            sum(each.gained_seconds for each in measured),
            sum(each.busy_seconds for each in measured),
        )

    def _link(self) -> KvLink | None:
        rate = self.config.kv_link_bytes_per_second
        return None if rate is None else KvLink(rate, self.config.kv_link_latency_seconds)


@dataclass(frozen=True, slots=True)
class _ModelInputs:
    """Inputs common to all answers about a model; `unlearned` is why step times are missing."""

    costs: SeparationCosts
    load: RecentLoad | None
    targets: Targets
    link: KvLink | None
    unlearned: tuple[str, ...]

    def mixed(
        self,
        today: Today,
        gpu_name: str,
        gpus: int,
        interference: InterferenceSeconds | None = None,
    ) -> GpuSeparation:
        """Whether this many GPUs should be mixed or separate."""
        engines = self.costs.engines(gpu_name)
        if self.load is None:
            return GpuSeparation(today, gpu_name, gpus, self._without_load(engines))
        found = separation(engines, self.load.mix, self.targets, gpus, self.link, interference)
        return GpuSeparation(today, gpu_name, gpus, self._explained(found))

    def pools(self, running: Sequence[RunningEngines]) -> GpuSeparation:
        """Whether a prefill and a decode pool should be merged."""
        names = sorted({each.gpu_name for each in running})
        roles = [each.role for each in running]
        gpus = sum(each.gpus * each.engines for each in running)

        def answer(verdict: SeparationVerdict | UndecidedSeparation) -> GpuSeparation:
            return GpuSeparation(Today.SEPARATE, ", ".join(names), gpus, verdict)

        for one, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
            if other not in roles:
                return answer(UndecidedSeparation((f"{other} engines: only {one} engines run",)))
        if len(names) > 1 or len(roles) > 2:
            several = "one kind of prefill and one kind of decode engine, on GPUs of one name"
            return answer(UndecidedSeparation((several,)))
        prefill, decode = sorted(running, key=lambda each: each.role is Role.DECODE)
        engines = self.costs.of_pools(names[0], prefill.gpus, decode.gpus)
        if self.load is None:
            return answer(self._without_load(engines))
        if not (engines.prefill and engines.decode):
            return answer(
                self._explained(UndecidedSeparation(tuple(missing_inputs(engines, self.link))))
            )
        today = (prefill.engines, decode.engines)
        found = merging(engines, self.load.mix, self.targets, today, self.link)
        return answer(self._explained(found))

    def _without_load(self, engines: Engines) -> UndecidedSeparation:
        few = f"{LEAST_REQUESTS} requests of the last day or more"
        missing = (few, *missing_inputs(engines, self.link))
        return self._explained_missing(missing)

    def _explained(
        self, found: SeparationVerdict | UndecidedSeparation
    ) -> SeparationVerdict | UndecidedSeparation:
        """If undecided, also what engines have not learned yet."""
        if isinstance(found, UndecidedSeparation):
            return self._explained_missing(found.missing)
        return found

    def _explained_missing(self, missing: tuple[str, ...]) -> UndecidedSeparation:
        return UndecidedSeparation((*missing, *self.unlearned))


def _unknown(missing: str, gpus: int | None) -> GpuSeparation:
    return GpuSeparation(Today.ASSUMED, "", gpus, UndecidedSeparation((missing,)))
