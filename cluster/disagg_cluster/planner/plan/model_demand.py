"""The inputs of a plan for one model."""

from __future__ import annotations

from dataclasses import dataclass, field

from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.forecast.driver_shifts import DriverShift
from disagg_cluster.planner.forecast.forecast_error import ForecastError
from disagg_cluster.planner.forecast.load_forecast import UndecidedForecast
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.plan.worker_option import WorkerOption
from disagg_exporter.model import Role

BLOCK_SECONDS = 300.0
"""How long a decision holds; longer if the steps of the forecast are."""


@dataclass(frozen=True, slots=True)
class RunningEngines:
    """Engines of one kind that run, or are ordered."""

    role: Role
    gpu_name: str
    gpus: int
    engines: int


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """One model: its possible futures, the workers that could serve it, and those that do.

    `base_mix` describes its requests apart from their number and lengths: cached tokens and
    dispersions. `drivers` are recent shifts of the load; `error` is that of its past forecasts.
    """

    model_name: str
    engine_namespace: str
    paths: LoadPaths | UndecidedForecast
    options: tuple[WorkerOption, ...]
    running: tuple[RunningEngines, ...] = ()
    base_mix: RequestMix = field(default_factory=lambda: RequestMix(1.0, 1.0, 1.0))
    drivers: tuple[DriverShift, ...] = ()
    error: ForecastError | None = None

    def present(self, option: WorkerOption) -> int:
        """How many engines of an option there are."""
        return sum(
            each.engines
            for each in self.running
            if (each.role, each.gpu_name, each.gpus) == (option.role, option.gpu_name, option.gpus)
        )

    @property
    def roles(self) -> tuple[Role, ...]:
        """Prefill and decode, or mixed: those that run; if none, those that could, pairs first."""
        offered = {option.role for option in self.options}
        run = {each.role for each in self.running if each.engines} & offered
        pair = (Role.PREFILL, Role.DECODE)
        if Role.MIXED in offered and (run == {Role.MIXED} or not offered.issuperset(pair)):
            return (Role.MIXED,)
        return pair

    def blocks(self, now_seconds: float) -> LoadPaths | UndecidedForecast:
        """Its futures from now on, in blocks of one decision each."""
        if isinstance(self.paths, UndecidedForecast):
            return self.paths
        blocks = self.paths.in_blocks(max(BLOCK_SECONDS, self.paths.step_seconds))
        over = max(0, int((now_seconds - blocks.start_seconds) // blocks.step_seconds))
        if over >= blocks.steps:
            return UndecidedForecast("its forecast ended before now")
        return blocks.later(over)
