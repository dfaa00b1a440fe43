"""Deployments drawn at random: engines of priced GPUs, and a load that uses a part of them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.simulator.cluster.network import LinkSpec, Policy
from disagg_cluster.simulator.cluster.spec import ClusterSpec, EngineSpec
from disagg_cluster.simulator.engine.roofline import BatchWork, CostModel, Noise
from disagg_cluster.simulator.load import Lengths, Mix
from disagg_cluster.simulator.prices.shipped import named_costs
from disagg_exporter.model import Role

GPUS_A_NODE = 8
MOST_NODES = 4
MOST_REQUESTS_PER_SECOND = 4.0
"""More would only cost time: prompts are made longer instead."""

Range = Sequence[float]


@dataclass(frozen=True, slots=True)
class Deployment:
    """Engines and the load on them; `load_ratio` is how full the prefill or mixed engines are.

    `prompt_seconds` is what one of its mean prompts holds an engine for.
    """

    cluster: ClusterSpec
    mix: Mix
    lengths: Lengths
    targets: Targets
    load_ratio: float
    prompt_seconds: float
    fronts: tuple[str, ...]

    @property
    def entry_role(self) -> Role:
        """The role of the engines that read prompts."""
        roles = {engine.role for engine in self.cluster.engines}
        return Role.MIXED if Role.MIXED in roles else Role.PREFILL

    def of(self, role: Role) -> list[EngineSpec]:
        """The engines of a role."""
        return [engine for engine in self.cluster.engines if engine.role is role]

    def entries(self) -> list[EngineSpec]:
        """The engines that read prompts."""
        return self.of(self.entry_role)

    def with_engines(self, engines: Sequence[EngineSpec]) -> Deployment:
        """The same with other engines."""
        return replace(self, cluster=replace(self.cluster, engines=tuple(engines)))


def prompt_seconds(costs: CostModel, prompt_tokens: float, step_tokens: int) -> float:
    """How long a prompt holds an engine that is busy: its share of full steps, or its chunks."""
    tokens = max(1, round(prompt_tokens))
    if tokens < step_tokens:
        prompts = step_tokens // tokens
        pairs = prompts * tokens * (tokens + 1) // 2
        work = BatchWork(prompts * tokens, pairs, prompts * tokens)
        return costs.price(work).seconds / prompts
    seconds, done = 0.0, 0
    while done < tokens:
        chunk = min(step_tokens, tokens - done)
        pairs = chunk * done + chunk * (chunk + 1) // 2
        seconds += costs.price(BatchWork(chunk, pairs, done + chunk)).seconds
        done += chunk
    return seconds


def decode_batch(costs: CostModel, kv_tokens: float, itl_seconds: float, most: int) -> int:
    """The largest batch, each with so much context, whose step is within the target."""
    fitting = 1
    for batch in range(1, most + 1):
        work = BatchWork(writers=batch, writers_kv_tokens=batch * kv_tokens)
        if costs.price(work).seconds > itl_seconds:
            break
        fitting = batch
    return fitting


def draw_deployment(
    rng: random.Random, drawn: Mapping[str, object], *, mixed: bool = False
) -> Deployment:
    """Draw one from the ranges of the scenario file.

    `drawn` may pin down `load`, `prefill`, `prompt_tokens`, `output_tokens`, `tables`,
    `step_tokens`, `reuse`, `prompt_spread`; each a range, or for tables a list of names.
    """
    table = rng.choice(_names(drawn["tables"]))
    costs = named_costs(table)
    gpu, model = costs.roofline.gpu, costs.roofline.model
    each = costs.roofline.tensor_parallel
    step_tokens = int(rng.choice(_numbers(drawn["step_tokens"])))
    load_ratio = _between(rng, drawn["load"])
    entries = _whole(rng, drawn["prefill"])
    entries = min(entries, max(1, MOST_NODES * GPUS_A_NODE // each // 2))
    output_tokens = round(_between(rng, drawn["output_tokens"]))
    reuse_ratio = _between(rng, drawn["reuse"])
    prompt_tokens = _between(rng, drawn["prompt_tokens"])
    kv_room = costs.roofline.kv_tokens()

    def load_of(tokens: float) -> tuple[float, float]:
        """Requests a second, and the seconds of one prompt."""
        computed = tokens * (1 - reuse_ratio * _PREFIX_SHARE)
        seconds = prompt_seconds(costs, computed, step_tokens)
        if mixed:
            # What its tokens take of the steps that it then writes in.
            seconds += output_tokens * _writing_seconds(costs, tokens)
        return load_ratio * entries / seconds, seconds

    rate, seconds = load_of(prompt_tokens)
    while rate > MOST_REQUESTS_PER_SECOND and prompt_tokens < 0.08 * kv_room:
        prompt_tokens *= 1.15
        rate, seconds = load_of(prompt_tokens)
    one = costs.price(BatchWork(writers=1, writers_kv_tokens=prompt_tokens)).seconds
    itl_seconds = max(0.05, 3 * one)
    context = prompt_tokens + output_tokens / 2
    batch = decode_batch(costs, context, 0.8 * itl_seconds, 128)
    batch = max(1, min(batch, int(0.6 * kv_room / context)))
    step_seconds = costs.price(BatchWork(writers=batch, writers_kv_tokens=batch * context)).seconds
    decodes = math.ceil(rate * output_tokens * step_seconds / batch / 0.7)
    first_seconds = prompt_seconds(costs, prompt_tokens, step_tokens) + one
    spread = _between(rng, drawn["prompt_spread"])
    # Targets follow what an idle engine takes, with room for a queue that grows with the load.
    ttft_seconds = first_seconds * rng.uniform(3.0, 5.0) * (1 + spread) + 0.2
    lengths = Lengths(
        prompt_spread=spread,
        output_spread=rng.uniform(0.3, 0.8),
        reuse_ratio=reuse_ratio,
        prefixes=rng.choice((4, 8, 16)),
        prefix_tokens=round(prompt_tokens * _PREFIX_SHARE),
        longest_tokens=round(min(0.25 * kv_room, 12 * prompt_tokens)),
    )
    kinds = [Role.MIXED] * entries if mixed else [Role.PREFILL] * entries + [Role.DECODE] * decodes
    noise = Noise(step_ratio=rng.uniform(0.01, 0.05), drift_ratio=rng.uniform(0.0, 0.02))
    engines = tuple(
        EngineSpec(
            f"{role}-{kinds[:number].count(role)}",
            role,
            tuple(f"GPU-{node}-{index}" for index in gpus),
            node=node,
            gpu=gpu,
            model=model,
            step_tokens=step_tokens,
            noise=noise,
            longest_tokens=131_072,
        )
        for number, (role, (node, gpus)) in enumerate(
            zip(kinds, _places(rng, len(kinds), each), strict=True)
        )
    )
    nodes = tuple(dict.fromkeys(engine.node for engine in engines))
    return Deployment(
        ClusterSpec(
            engines,
            link=LinkSpec(bytes_per_second=rng.choice((20e9, 40e9)), latency_seconds=0.002),
            policy=rng.choice((Policy.ROUND_ROBIN, Policy.LEAST_LOADED)),
            hop_seconds=rng.uniform(0.001, 0.004),
            lease_seconds=60.0,
        ),
        Mix(rate, prompt_tokens, output_tokens),
        lengths,
        Targets(ttft_seconds, itl_seconds),
        load_ratio,
        seconds,
        () if rng.random() < _WITHOUT_FRONT else (rng.choice(nodes),),
    )


_PREFIX_SHARE = 0.6
"""How much of the mean prompt a shared prefix is."""
_WITHOUT_FRONT = 0.15


def _writing_seconds(costs: CostModel, kv_tokens: float) -> float:
    """What each token of a batch of sixteen takes, less what the step would take anyway."""
    both = costs.price(BatchWork(writers=16, writers_kv_tokens=16 * kv_tokens)).seconds
    return both / 16


def _places(
    rng: random.Random, engines: int, gpus_each: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The node and the GPUs of each engine: nodes are filled evenly, in turn."""
    needed = math.ceil(engines * gpus_each / GPUS_A_NODE)
    nodes = rng.randint(needed, max(needed, min(MOST_NODES, engines)))
    for number in range(engines):
        first = number // nodes * gpus_each
        yield f"node-{number % nodes}", tuple(range(first, first + gpus_each))


def _between(rng: random.Random, what: object) -> float:
    low, high = _numbers(what)
    return rng.uniform(low, high)


def _whole(rng: random.Random, what: object) -> int:
    low, high = _numbers(what)
    return rng.randint(int(low), int(high))


def _numbers(what: object) -> list[float]:
    assert isinstance(what, list)
    return [float(each) for each in what]


def _names(what: object) -> list[str]:
    assert isinstance(what, list)
    return [str(each) for each in what]
