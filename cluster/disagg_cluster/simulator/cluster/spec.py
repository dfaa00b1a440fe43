"""Specification of a simulated cluster: engines on the GPUs of nodes, routing, reporting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from disagg_cluster.simulator.cluster.network import LinkSpec, Policy
from disagg_cluster.simulator.engine.batch import SchedulerLimits
from disagg_cluster.simulator.engine.hardware import H100, LLAMA_8B, Gpu, Model
from disagg_cluster.simulator.engine.roofline import CostModel, Noise, Roofline
from disagg_cluster.simulator.prices.shipped import best_costs
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Role


class SpecError(DisaggError):
    """An impossible cluster; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine. Its tensor-parallel size is the number of its `gpus` (UUIDs).

    `kv_tokens`: size of its cache, None for what fits into the memory. `costs`: the costs of its
    steps, None for `best_costs` of its GPUs and model. `start_seconds` pass from a start of its
    process until it is ready; its first step then takes `cold_factor` times as long (kernels
    compiled, graphs captured), which fades over `warm_up_seconds`. Engines that exist from the
    start of a simulation are warm. `reserved_output_tokens`: see `SchedulerLimits`.
    """

    name: str
    role: Role
    gpus: tuple[str, ...]
    node: str = "sim-node"
    gpu: Gpu = H100
    model: Model = LLAMA_8B
    kv_tokens: int | None = None
    block_tokens: int = 16
    running_requests: int = 256
    step_tokens: int = 8192
    longest_tokens: int = 131_072
    prefix_caching: bool = True
    noise: Noise = field(default_factory=Noise)
    gap_seconds: float = 0.0005
    start_seconds: float = 60.0
    cold_factor: float = 1.0
    warm_up_seconds: float = 0.0
    reserved_output_tokens: int = 0
    costs: CostModel | None = None

    def roofline(self) -> Roofline:
        """Return the costs of its GPUs and model by data sheets."""
        return Roofline(self.gpu, self.model, len(self.gpus))

    def step_costs(self, clock_ratio: float = 1.0) -> CostModel:
        """Return the costs of its steps when its slowest GPU has this part of its clock."""
        return self.costs or best_costs(self.gpu, self.model, len(self.gpus), clock_ratio)

    def limits(self) -> SchedulerLimits:
        """Return its limits; raises `SpecError` if there is no room for a cache."""
        tokens = self.roofline().kv_tokens() if self.kv_tokens is None else self.kv_tokens
        blocks = tokens // self.block_tokens - 1  # vLLM keeps one for itself
        if blocks < 1:
            raise SpecError(
                f"{self.name}: {self.model.name} leaves no room for a KV cache on "
                f"{len(self.gpus)} of {self.gpu.name}"
            )
        return SchedulerLimits(
            kv_blocks=blocks,
            block_tokens=self.block_tokens,
            running_requests=self.running_requests,
            step_tokens=self.step_tokens,
            reserved_output_tokens=self.reserved_output_tokens,
        )


@dataclass(frozen=True, slots=True)
class Reporting:
    """What is reported, and how often; None for never.

    Without `single_steps`, consecutive equal decode steps are reported as one record: the same
    seconds and tokens with fewer records, for long simulations. Without `engines` these report
    nothing at all, for simulations of which only the requests are of interest.
    """

    engines: bool = True
    single_steps: bool = True
    heartbeat_seconds: float | None = 1.0
    page_seconds: float | None = 1.0
    sweep_seconds: float | None = 0.1
    requests: bool = True
    report_seconds: float = 0.0003
    """Time from the end of a step to its record."""
    wall_offset_seconds: float = 1.75e9
    """Offset from virtual to Unix time on the pages."""


BRIEF = Reporting(single_steps=False, page_seconds=15.0, sweep_seconds=1.0)
"""For simulated days: runs of steps, pages at Prometheus' scrape interval, a reading per second."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Engines, and what connects them. `hop_seconds`: from the router to an engine."""

    engines: tuple[EngineSpec, ...]
    link: LinkSpec = field(default_factory=LinkSpec)
    policy: Policy = Policy.ROUND_ROBIN
    most_in_flight: int | None = None
    hop_seconds: float = 0.001
    lease_seconds: float = 480.0
    """How long a prefill engine keeps KV that is never fetched."""
    router_tells_queue: bool = True
    """Whether the frontend's page reports how many requests wait there for an engine."""

    def __post_init__(self) -> None:
        names = [engine.name for engine in self.engines]
        gpus = [gpu for engine in self.engines for gpu in engine.gpus]
        if len(set(names)) < len(names) or len(set(gpus)) < len(gpus):
            raise SpecError("two engines have the same name or GPU")
        roles = {engine.role for engine in self.engines}
        if not roles or not roles <= {Role.MIXED, Role.PREFILL, Role.DECODE}:
            raise SpecError("engines are for prefill, decode or mixed, and there is one at least")
        if (Role.PREFILL in roles) is not (Role.DECODE in roles):
            raise SpecError("a prefill engine needs a decode engine, and the other way round")

    def of(self, role: Role) -> list[str]:
        """Return the names of the engines of a role."""
        return [engine.name for engine in self.engines if engine.role is role]


def disaggregated(
    prefill: int, decode: int, *, gpus_each: int = 1, node: str = "sim-node", **more: object
) -> tuple[EngineSpec, ...]:
    """Return so many prefill and decode engines on one node; `more` is for each `EngineSpec`."""
    roles = [(Role.PREFILL, number) for number in range(prefill)]
    roles += [(Role.DECODE, number) for number in range(decode)]
    uuids = _uuids(node)
    return tuple(
        EngineSpec(
            name=f"{role}-{number}",
            role=role,
            gpus=tuple(next(uuids) for _ in range(gpus_each)),
            node=node,
            **more,  # type: ignore[arg-type] # checked where the spec is made
        )
        for role, number in roles
    )


def _uuids(node: str) -> Iterator[str]:
    index = 0
    while True:
        yield f"GPU-{node}-{index:04d}"
        index += 1
