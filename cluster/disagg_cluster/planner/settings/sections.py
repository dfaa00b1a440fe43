"""The sections of a planner file: where the past is, what was promised, which engines there are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from disagg_cluster.config.values import (
    Amount,
    AnyText,
    Count,
    EngineRole,
    HookUrl,
    PathText,
    Seconds,
    Section,
    Text,
)
from disagg_cluster.planner.capacity.learned.profile_costs import ProfileCosts, profile_costs
from disagg_cluster.planner.capacity.learned.tune_profile import TuneProfile, read_profile
from disagg_cluster.planner.capacity.priced_costs import PricedCosts, priced_costs
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.rebalance.limits import RebalanceMode
from disagg_cluster.simulator.engine.hardware import GPUS, MODELS
from disagg_exporter.model import Role

_DAY_SECONDS = 86_400.0


def _serving(role: Role) -> Role:
    if role not in (Role.PREFILL, Role.DECODE, Role.MIXED):
        raise ValueError("not a role that a plan knows")
    return role


def _off(mode: object) -> object:
    """What YAML takes for `false`."""
    return RebalanceMode.OFF if mode is False else mode


def _priced_or_profiled(name: str, info: ValidationInfo) -> str:
    if info.data.get("profile") is None and name not in _GPU_NAMES:
        raise ValueError("not one that we can price")
    return name


def _known(names: Sequence[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names:
            raise ValueError("not one that we can price")
        return name

    return AfterValidator(check)


_GPU_NAMES = tuple(each.name for each in GPUS)
_MODEL_NAMES = tuple(each.name for each in MODELS)
_ServingRole = Annotated[EngineRole, AfterValidator(_serving)]
_WorkerGpu = Annotated[Text, AfterValidator(_priced_or_profiled)]
_PricedModel = Annotated[Text, _known(_MODEL_NAMES)]


class PrometheusSection(Section):
    """Where the past is read."""

    url: HookUrl = Field(
        default="http://127.0.0.1:9090", description="an address such as http://prometheus:9090"
    )
    http_config: PathText | None = Field(
        default=None, description="the path of an HTTP config file, as promtool takes it"
    )


class HistorySection(Section):
    """How much of the past, and how fine."""

    days: Annotated[float, Field(ge=0.1, le=90)] = Field(
        default=14.0, description="days, a number from 0.1 to 90"
    )
    step_seconds: Annotated[float, Field(ge=15, le=3600)] = Field(
        default=60.0, description="seconds, a number from 15 to 3600"
    )

    @property
    def seconds(self) -> float:
        """How far back."""
        return self.days * _DAY_SECONDS


class DiagnosisSection(Section):
    """How often what holds requests back is looked for, and over how long."""

    enabled: bool = Field(default=True, description="true or false")
    every_seconds: Annotated[float, Field(ge=5, le=300)] = Field(
        default=15.0, description="seconds, a number from 5 to 300"
    )
    minutes: Annotated[float, Field(ge=5, le=120)] = Field(
        default=30.0, description="minutes, a number from 5 to 120"
    )


class TargetsSection(Section):
    """What users were promised, and which share of the requests has to be within each of both."""

    ttft_seconds: Seconds = 0.5
    itl_seconds: Seconds = 0.05
    attainment: Annotated[float, Field(ge=0.5, lt=1)] = Field(
        default=0.95, description="a share from 0.5 to below 1"
    )

    def targets(self) -> Targets:
        """The same for the core."""
        return Targets(self.ttft_seconds, self.itl_seconds, self.attainment)


class TimingSection(Section):
    """How long an engine takes from its order until it serves, and others."""

    lead_seconds: Amount = 600.0
    drain_seconds: Amount = 60.0
    hold_seconds: Amount = 1800.0


class RebalanceSection(Section):
    """Whether engines change their role, and how often at most.

    `downtime_seconds` is what a move takes its engine where none was measured; without it a drain
    and a start as of `timing`. `run_dir` is the run folder of the one daemon that `act` asks.
    """

    mode: Annotated[RebalanceMode, Field(strict=False), BeforeValidator(_off)] = Field(
        default=RebalanceMode.ADVISE, description="one of off, advise, act"
    )
    moves_per_hour: Annotated[int, Field(ge=1, le=60)] = Field(
        default=6, description="a number of moves, 1 to 60"
    )
    cool_down_seconds: Annotated[float, Field(ge=0, le=86_400)] = Field(
        default=120.0, description="seconds, a number from 0 to 86400"
    )
    horizon_seconds: Annotated[float, Field(ge=600, le=86_400)] = Field(
        default=3600.0, description="seconds, a number from 600 to 86400"
    )
    gain_ratio: Annotated[float, Field(ge=1, le=1000)] = Field(
        default=2.0, description="a number from 1 to 1000"
    )
    downtime_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = Field(
        default=None, description="seconds, a number above 0, to 86400"
    )
    run_dir: PathText | None = Field(
        default=None, description="the path of a daemon's run folder, which `act` needs"
    )


class OfferSection(Section):
    """GPUs of one name that can be had."""

    gpu_name: Text = Field(description="a GPU's name as exported, such as NVIDIA H200")
    most_gpus: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="a number of GPUs, 0 or more"
    )
    gpus_per_node: Count = Field(default=8, description="a number of GPUs, 1 or more")
    price_per_hour: Amount | None = Field(
        default=None, description="the price of one GPU for an hour, a number from 0 up"
    )
    idle_watts: Amount | None = Field(
        default=None, description="watts of a GPU that idles, a number from 0 up"
    )


class WorkerSection(Section):
    """A kind of engine that could serve, or does: priced by a table or data sheets, or profiled.

    `engines` are how many there are where nobody else tells. `profile` is a file that
    `disagg-node tune` has written; without one there is `priced_as`.
    """

    role: _ServingRole = Field(description="one of prefill, decode, mixed")
    profile: PathText | None = Field(
        default=None, description="the path of a profile that disagg-node tune has written"
    )
    gpu_name: _WorkerGpu = Field(
        description=f"one of {', '.join(_GPU_NAMES)}; with a `profile` any name of a GPU"
    )
    gpus: Count = Field(default=1, description="GPUs of an engine, 1 or more")
    priced_as: _PricedModel | None = Field(
        default=None, description=f"one of {', '.join(_MODEL_NAMES)}"
    )
    engines: Annotated[int, Field(ge=0)] = Field(
        default=0, description="a number of engines, 0 or more"
    )
    max_num_batched_tokens: Count = Field(default=8192, description="tokens, 1 or more")
    max_num_seqs: Count = Field(default=256, description="requests, 1 or more")

    def costs(self) -> PricedCosts | ProfileCosts:
        """What its steps take.

        Raises:
            ValueError: The model leaves no room for a cache on so many GPUs, or the profile lacks
                what its role needs, or there is neither a model nor a profile.
            LinkError: There is no such group of GPUs.
            ConfigError: The profile cannot be read.
        """
        if (self.profile is None) == (self.priced_as is None):
            raise ValueError("expected one of priced_as and profile")
        if self.profile is not None:
            given = self.model_fields_set
            return profile_costs(
                _profile(self.profile),
                self.role,
                self.gpu_name,
                self.gpus,
                self.max_num_batched_tokens if "max_num_batched_tokens" in given else None,
                self.max_num_seqs if "max_num_seqs" in given else None,
            )
        return priced_costs(
            next(each for each in GPUS if each.name == self.gpu_name),
            next(each for each in MODELS if each.name == self.priced_as),
            self.gpus,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
        )


@lru_cache(maxsize=64)
def _profile(path: str) -> TuneProfile:
    """A profile, read once: the planner file that names it is, too."""
    return read_profile(Path(path))


class ModelSection(Section):
    """One model, by the name that it is served under."""

    model_name: AnyText = Field(default="", description="the name that it is served under, text")
    engine_namespace: AnyText | None = Field(default=None, description="a namespace, text")
    targets: TargetsSection | None = None
    transfer_seconds: Amount = 0.0
    kv_bytes_per_token: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None, description="bytes of KV that a token takes, a number above 0"
    )
    workers: Annotated[tuple[WorkerSection, ...], Field(strict=False)] = Field(
        default=(), description="a list of workers"
    )
