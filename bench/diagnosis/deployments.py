"""Random deployments: engines with known step costs, and a load on a part of their capacity."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.diagnosis.occupancy import (
    decode_batch,
    mean_prompt_seconds,
    prompt_seconds,
    writing_seconds,
)
from bench.diagnosis.ranges import Ranges

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.simulator.cluster.network import LinkSpec, Policy
from disagg_cluster.simulator.cluster.spec import ClusterSpec, EngineSpec
from disagg_cluster.simulator.engine.roofline import BatchWork, CostModel, Noise
from disagg_cluster.simulator.load import Lengths, Mix
from disagg_cluster.simulator.prices.shipped import named_costs
from disagg_cluster.simulator.prices.table_costs import TableCosts
from disagg_exporter.model import Role

GPUS_A_NODE = 8
MOST_NODES = 4
_PREFIX_SHARE = 0.6
"""Length of a shared prefix over that of the mean prompt."""
_KV_ROUTER = 0.5
"""Share of KV-aware routers, which export how many requests they hold."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Engines and the load on them; `load_ratio` is the utilisation of prefill or mixed engines.

    `request_seconds` is the mean time that a request occupies one of those; `idle_seconds` the
    time to first token of a mean prompt at an idle engine.
    """

    cluster: ClusterSpec
    mix: Mix
    lengths: Lengths
    targets: Targets
    load_ratio: float
    request_seconds: float
    idle_seconds: float
    fronts: tuple[str, ...]

    @property
    def entry_role(self) -> Role:
        """The role of the engines that compute prompts."""
        roles = {engine.role for engine in self.cluster.engines}
        return Role.MIXED if Role.MIXED in roles else Role.PREFILL

    def of(self, role: Role) -> list[EngineSpec]:
        """The engines of a role."""
        return [engine for engine in self.cluster.engines if engine.role is role]

    @property
    def costs(self) -> CostModel:
        """The step costs of its engines."""
        return self.cluster.engines[0].step_costs()

    def entries(self) -> list[EngineSpec]:
        """The engines that compute prompts."""
        return self.of(self.entry_role)

    def with_engines(self, engines: Sequence[EngineSpec]) -> Deployment:
        """A copy with other engines."""
        return replace(self, cluster=replace(self.cluster, engines=tuple(engines)))


@dataclass(frozen=True, slots=True)
class _Load:
    """The distribution of requests, and how long each occupies an engine that computes prompts."""

    mix: Mix
    lengths: Lengths
    request_seconds: float


def draw_deployment(ranges: Ranges, *, mixed: bool) -> Deployment:
    """Draw the engines that compute prompts, a load for them, and decode engines for that load."""
    rng = ranges.rng
    costs = named_costs(ranges.name("tables"))
    gpus_each = costs.roofline.tensor_parallel
    step_tokens = int(ranges.number("step_tokens"))
    load_ratio = ranges.between("load")
    most_entries = max(1, MOST_NODES * GPUS_A_NODE // gpus_each // 2)
    entries = min(ranges.whole("prefill"), most_entries)
    load = _draw_load(ranges, costs, step_tokens, load_ratio * entries, mixed=mixed)
    prompt_tokens = load.mix.prompt_tokens
    token_seconds = costs.price(BatchWork(writers=1, writers_kv_tokens=prompt_tokens)).seconds
    idle_seconds = prompt_seconds(costs, round(prompt_tokens), step_tokens) + token_seconds
    itl_seconds = max(0.05, 3 * token_seconds)
    # Targets follow the time of an idle engine, with room for a queue that grows with the load.
    patience = rng.uniform(3.0, 5.0) * (1 + load.lengths.prompt_spread)
    roles = [Role.MIXED] * entries
    if not mixed:
        # Where the load grows later, decode engines may have room for `decode_room` times as many.
        later = load.mix.requests_per_second * ranges.fixed("decode_room", 1.0)
        decodes = _decode_engines(costs, replace(load.mix, requests_per_second=later), itl_seconds)
        roles = [Role.PREFILL] * entries + [Role.DECODE] * decodes
    engines = tuple(_engines(rng, costs, roles, step_tokens))
    nodes = tuple(dict.fromkeys(engine.node for engine in engines))
    return Deployment(
        ClusterSpec(
            engines,
            link=LinkSpec(bytes_per_second=rng.choice((20e9, 40e9)), latency_seconds=0.002),
            policy=rng.choice((Policy.ROUND_ROBIN, Policy.LEAST_LOADED)),
            hop_seconds=rng.uniform(0.001, 0.004),
            lease_seconds=60.0,
            router_tells_queue=rng.random() < _KV_ROUTER,
        ),
        load.mix,
        load.lengths,
        Targets(idle_seconds * patience + 0.2, itl_seconds),
        load_ratio,
        load.request_seconds,
        idle_seconds,
        (rng.choice(nodes),) if ranges.chance("frontend") else (),
    )


def _draw_load(
    ranges: Ranges, costs: TableCosts, step_tokens: int, busy_engines: float, *, mixed: bool
) -> _Load:
    """Draw a load for `busy_engines` engines; beyond `most_requests` prompts are longer instead."""
    prompt_tokens, output_tokens = ranges.between("prompt_tokens"), ranges.between("output_tokens")
    longest, most_requests = ranges.between("longest"), ranges.between("most_requests")
    kv_tokens = costs.roofline.kv_tokens()
    usual = Lengths(
        prompt_spread=ranges.between("prompt_spread"),
        output_spread=ranges.rng.uniform(0.3, 0.8),
        reuse_ratio=ranges.between("reuse"),
        prefixes=ranges.rng.choice((4, 8, 16)),
    )

    def load_of(tokens: float) -> _Load:
        lengths = replace(
            usual,
            prefix_tokens=round(tokens * _PREFIX_SHARE),
            longest_tokens=round(min(0.25 * kv_tokens, longest * tokens)),
        )
        seconds = mean_prompt_seconds(costs, Mix(1.0, tokens, output_tokens), lengths, step_tokens)
        if mixed:
            # The share of its tokens in the decode steps.
            seconds += output_tokens * writing_seconds(costs, tokens)
        return _Load(Mix(busy_engines / seconds, tokens, round(output_tokens)), lengths, seconds)

    load = load_of(prompt_tokens)
    while (rate := load.mix.requests_per_second) > most_requests:
        if load.mix.prompt_tokens > 0.08 * kv_tokens:
            break
        longer = min(2.0, max(1.1, rate / most_requests))
        load = load_of(load.mix.prompt_tokens * longer)
    return load


def _decode_engines(costs: TableCosts, mix: Mix, itl_seconds: float) -> int:
    """The number of decode engines that meets the target with room in their caches."""
    context = mix.prompt_tokens + mix.output_tokens / 2
    batch = decode_batch(costs, context, 0.8 * itl_seconds, 128)
    batch = max(1, min(batch, int(0.6 * costs.roofline.kv_tokens() / context)))
    step_seconds = costs.price(BatchWork(writers=batch, writers_kv_tokens=batch * context)).seconds
    return math.ceil(mix.requests_per_second * mix.output_tokens * step_seconds / batch / 0.7)


def _engines(
    rng: random.Random, costs: TableCosts, roles: Sequence[Role], step_tokens: int
) -> Iterator[EngineSpec]:
    """Engines of these roles, spread evenly over nodes."""
    gpus_each = costs.roofline.tensor_parallel
    needed = math.ceil(len(roles) * gpus_each / GPUS_A_NODE)
    nodes = rng.randint(needed, max(needed, min(MOST_NODES, len(roles))))
    noise = Noise(step_ratio=rng.uniform(0.01, 0.05), drift_ratio=rng.uniform(0.0, 0.02))
    for number, role in enumerate(roles):
        node, first = f"node-{number % nodes}", number // nodes * gpus_each
        yield EngineSpec(
            f"{role}-{roles[:number].count(role)}",
            role,
            tuple(f"GPU-{node}-{first + gpu}" for gpu in range(gpus_each)),
            node=node,
            gpu=costs.roofline.gpu,
            model=costs.roofline.model,
            step_tokens=step_tokens,
            noise=noise,
        )
