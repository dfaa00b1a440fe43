"""Sections of a planner file: history source, latency targets, engines, GPUs, rebalancing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from disagg_cluster.config.values import (
    MOST_GPUS,
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
_USUAL_NODE = 8


def _serving(role: Role) -> Role:
    if role not in (Role.PREFILL, Role.DECODE, Role.MIXED):
        raise ValueError("not a role that can be planned")
    return role


def _off(mode: object) -> object:
    """Undo YAML's reading of `off` as `false`."""
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
_MODES = WithJsonSchema({"enum": [*(mode.value for mode in RebalanceMode), False]})
_WorkerGpu = Annotated[Text, AfterValidator(_priced_or_profiled)]
_PricedModel = Annotated[Text, _known(_MODEL_NAMES)]
# Typing errors must not reach the arithmetic of a plan, whose sums would be no numbers.
MOST_ENGINES = 100_000
_Wait = Annotated[
    float, Field(ge=0, le=604_800, description="seconds, a number from 0 to 604800 (a week)")
]
_Limit = Annotated[int, Field(ge=1, le=10_000_000)]


class PrometheusSection(Section):
    """The Prometheus server that history is read from."""

    url: HookUrl = Field(
        default="http://127.0.0.1:9090", description="an address such as http://prometheus:9090"
    )
    http_config: PathText | None = Field(
        default=None, description="the path of an HTTP config file, as promtool takes it"
    )


class HistorySection(Section):
    """Length and resolution of the history."""

    days: Annotated[float, Field(ge=0.1, le=90)] = Field(
        default=14.0, description="days, a number from 0.1 to 90"
    )
    step_seconds: Annotated[float, Field(ge=15, le=3600)] = Field(
        default=60.0, description="seconds, a number from 15 to 3600"
    )

    @property
    def seconds(self) -> float:
        """Length of the history."""
        return self.days * _DAY_SECONDS


class DiagnosisSection(Section):
    """How often bottlenecks are diagnosed, and over which window."""

    enabled: bool = Field(default=True, description="true or false")
    every_seconds: Annotated[float, Field(ge=5, le=300)] = Field(
        default=15.0, description="seconds, a number from 5 to 300"
    )
    minutes: Annotated[float, Field(ge=5, le=120)] = Field(
        default=30.0, description="minutes, a number from 5 to 120"
    )


class TargetsSection(Section):
    """Latency targets, and the share of requests that must meet each of them."""

    ttft_seconds: Seconds = 0.5
    itl_seconds: Seconds = 0.05
    attainment: Annotated[float, Field(ge=0.5, lt=1)] = Field(
        default=0.95, description="a share from 0.5 to below 1"
    )

    def targets(self) -> Targets:
        """Convert to the type that the capacity model uses."""
        return Targets(self.ttft_seconds, self.itl_seconds, self.attainment)


class TimingSection(Section):
    """Lead time from ordering an engine until it serves, drain time, and hold time."""

    lead_seconds: _Wait = 600.0
    drain_seconds: _Wait = 60.0
    hold_seconds: _Wait = 1800.0


class RebalanceSection(Section):
    """Whether engines change their role, and the limits of such moves.

    `downtime_seconds` is the assumed downtime of a move where none was measured; without it, drain
    plus lead time of `timing`. `run_dir` is the run folder of the daemon that `act` asks.
    """

    mode: Annotated[RebalanceMode, Field(strict=False), BeforeValidator(_off), _MODES] = Field(
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
    """Available GPUs of one name."""

    gpu_name: Text = Field(description="a GPU's name as exported, such as NVIDIA H200")
    most_gpus: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="a number of GPUs, 0 or more"
    )
    gpus_per_node: Count | None = Field(default=None, description="a number of GPUs, 1 or more")
    price_per_hour: Annotated[float, Field(ge=0, le=1e9)] | None = Field(
        default=None, description="the price of one GPU for an hour, a number from 0 to 1e9"
    )
    idle_watts: Annotated[float, Field(ge=0, le=1e6)] | None = Field(
        default=None, description="watts of a GPU that idles, a number from 0 to 1e6"
    )

    @property
    def node_gpus(self) -> int:
        """GPUs of a node: as given, else eight, or all of them if there are fewer."""
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        return _USUAL_NODE if not self.most_gpus else min(_USUAL_NODE, self.most_gpus)


class WorkerSection(Section):
    """A kind of engine that serves or could serve, with costs from data sheets or a profile.

    `engines` is their number where Prometheus does not report it. `profile` is a file written by
    `disagg-node tune`; without one, `priced_as` is required.
    """

    role: _ServingRole = Field(description="one of prefill, decode, mixed")
    profile: PathText | None = Field(
        default=None, description="the path of a profile written by disagg-node tune"
    )
    gpu_name: _WorkerGpu = Field(
        description=f"one of {', '.join(_GPU_NAMES)}; with a `profile` any name of a GPU"
    )
    gpus: Annotated[int, Field(ge=1, le=MOST_GPUS)] = Field(
        default=1, description=f"GPUs of an engine, 1 to {MOST_GPUS}"
    )
    priced_as: _PricedModel | None = Field(
        default=None, description=f"one of {', '.join(_MODEL_NAMES)}"
    )
    engines: Annotated[int, Field(ge=0, le=MOST_ENGINES)] = Field(
        default=0, description=f"a number of engines, 0 to {MOST_ENGINES}"
    )
    max_num_batched_tokens: _Limit = Field(default=8192, description="tokens, 1 to 10000000")
    max_num_seqs: _Limit = Field(default=256, description="requests, 1 to 10000000")

    def costs(self) -> PricedCosts | ProfileCosts:
        """Step costs of the engine.

        Raises:
            ValueError: The model leaves no room for a cache on so many GPUs, or the profile lacks
                data for the role, or not exactly one of model and profile is given.
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
    """Read a profile, once per process like the planner file that names it."""
    return read_profile(Path(path))


class ModelSection(Section):
    """Settings of one model, by its served name."""

    model_name: AnyText = Field(default="", description="the served name of the model, text")
    engine_namespace: AnyText | None = Field(default=None, description="a namespace, text")
    targets: TargetsSection | None = None
    transfer_seconds: Amount = 0.0
    kv_bytes_per_token: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None, description="bytes of KV cache per token, a number above 0"
    )
    workers: Annotated[tuple[WorkerSection, ...], Field(strict=False)] = Field(
        default=(), description="a list of workers"
    )
