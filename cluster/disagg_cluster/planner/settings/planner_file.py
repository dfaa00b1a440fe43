"""The planner file: source of history, latency targets, available GPUs, listen address.

All its problems are reported at once, each with its line, as for a node file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue

from disagg_cluster.config import Listen
from disagg_cluster.config.problems import Finding, config_error
from disagg_cluster.config.values import Amount, Count, PathText, Section, Text
from disagg_cluster.nodefile.draft import validated
from disagg_cluster.nodefile.shape import file_schema
from disagg_cluster.nodefile.yaml_positions import read_yaml_file
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.plan.bounds import GpuOffer, PlanBounds, PlanBoundsError
from disagg_cluster.planner.rebalance.limits import RebalanceLimits, RebalanceMode
from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.settings.sections import (
    MOST_ENGINES,
    DiagnosisSection,
    HistorySection,
    ModelSection,
    OfferSection,
    PrometheusSection,
    RebalanceSection,
    TargetsSection,
    TimingSection,
)
from disagg_exporter.errors import DisaggError
from disagg_exporter.model.counted import counted

DEFAULT_PORT = 9848


class PlannerConfig(Section):
    """A whole planner file."""

    cluster: Text | None = Field(default=None, description="the name of the cluster, text")
    prometheus: PrometheusSection = PrometheusSection()
    history: HistorySection = HistorySection()
    listen: Listen = Listen(metrics=f"0.0.0.0:{DEFAULT_PORT}")
    every_seconds: Annotated[float, Field(ge=10, le=86_400)] = Field(
        default=300.0, description="seconds, a number from 10 to 86400"
    )
    diagnosis: DiagnosisSection = DiagnosisSection()
    lock_file: PathText | None = Field(
        default=None, description="the path of a file that one planner locks"
    )
    targets: TargetsSection = TargetsSection()
    timing: TimingSection = TimingSection()
    rebalance: RebalanceSection = RebalanceSection()
    short_weight: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=9.0, description="a number above 0, to 1000"
    )
    gpus: Annotated[tuple[OfferSection, ...], Field(strict=False)] = Field(
        default=(), description="a list of available GPUs"
    )
    least_engines: Annotated[int, Field(ge=0, le=MOST_ENGINES)] = Field(
        default=1, description=f"a number of engines, 0 to {MOST_ENGINES}"
    )
    most_engines: Count | None = Field(default=None, description="a number of engines, 1 or more")
    budget_per_hour: Amount | None = Field(
        default=None, description="money for an hour, a number from 0 up"
    )
    kv_link_bytes_per_second: Annotated[float, Field(ge=1, le=1e15)] | None = Field(
        default=None,
        description="bytes a second, a number from 1 to 1e15, such as 50000000000 or 5.0e+10",
    )
    kv_link_latency_seconds: Amount = 0.0
    models: Annotated[tuple[ModelSection, ...], Field(strict=False)] = Field(
        default=(), description="a list of models"
    )

    def of_model(self, model_name: str, engine_namespace: str) -> ModelSection:
        """Settings of a model: the first matching section, or defaults."""
        for each in self.models:
            if each.model_name == model_name and each.engine_namespace in (None, engine_namespace):
                return each
        return ModelSection(model_name=model_name)

    def targets_of(self, model: ModelSection) -> Targets:
        """Latency targets of a model: its own, or the common ones."""
        return (model.targets or self.targets).targets()

    def bounds(self) -> PlanBounds:
        """Bounds of a plan.

        Raises:
            PlanBoundsError: The bounds contradict each other.
        """
        return PlanBounds(
            tuple(
                GpuOffer(
                    each.gpu_name,
                    each.most_gpus,
                    each.node_gpus,
                    each.price_per_hour,
                    each.idle_watts,
                )
                for each in self.gpus
            ),
            self.least_engines,
            self.most_engines,
            self.budget_per_hour,
        )

    def rebalance_limits(self) -> RebalanceLimits:
        """Limits of the moves of one model; each pool keeps at least one engine."""
        section = self.rebalance
        return RebalanceLimits(
            moves_per_hour=section.moves_per_hour,
            least_engines=max(1, self.least_engines),
            cool_down_seconds=section.cool_down_seconds,
            horizon_seconds=section.horizon_seconds,
            gain_ratio=section.gain_ratio,
        )

    def move_cost(self, measured_seconds: float | None) -> MoveCost:
        """Cost of a move: measured, or else set in the file or assumed from its timing."""
        if measured_seconds is not None:
            return MoveCost(measured_seconds, measured=True)
        assumed = self.timing.drain_seconds + self.timing.lead_seconds
        return MoveCost(self.rebalance.downtime_seconds or assumed)


def planner_file_schema() -> dict[str, JsonValue]:
    """Return the JSON schema of a planner file."""
    return file_schema(PlannerConfig, "Planner file of disagg-node")


def read_planner_file(path: Path) -> PlannerConfig:
    """Read a planner file; relative paths in it are relative to its folder.

    Raises:
        ConfigError: The file cannot be used; the error lists all problems.
    """
    document = read_yaml_file(path)
    findings: list[Finding] = list(document.findings)
    raw = {} if document.value is None and not findings else document.value
    config: PlannerConfig | None = None
    if raw is not None:
        _, config, _ = validated(raw, PlannerConfig, findings, path.absolute().parent)
    if config is not None:
        findings += _contradictions(config)
    if findings or config is None:
        raise config_error(findings, str(path), document.lines)
    return config


def _contradictions(config: PlannerConfig) -> Iterator[Finding]:
    """Yield problems that no single value shows."""
    try:
        config.bounds()
    except PlanBoundsError as error:
        yield Finding(("gpus",), str(error))
    for number, offer in enumerate(config.gpus):
        if offer.most_gpus and offer.most_gpus < offer.node_gpus:
            given = counted(offer.most_gpus, "GPU")
            why = f"expected at least one node of {offer.node_gpus}, not {given}"
            yield Finding(("gpus", number, "most_gpus"), why)
    if config.rebalance.mode is RebalanceMode.ACT and config.rebalance.run_dir is None:
        why = "act asks a daemon to move engines: expected run_dir, its run folder on this machine"
        yield Finding(("rebalance", "mode"), why)
    for number, model in enumerate(config.models):
        for before, other in enumerate(config.models[:number]):
            if other.model_name == model.model_name and other.engine_namespace in (
                None,
                model.engine_namespace,
            ):
                why = f"models[{before}] covers it already: only the first match counts"
                yield Finding(("models", number), why)
                break
        for place, worker in enumerate(model.workers):
            try:
                worker.costs()
            except (DisaggError, ValueError) as error:
                source = "gpus" if worker.profile is None else "profile"
                key = source if worker.profile or worker.priced_as else "priced_as"
                yield Finding(("models", number, "workers", place, key), str(error))
