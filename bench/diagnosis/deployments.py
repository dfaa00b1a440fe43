"""Deployments drawn at random: engines of priced GPUs, and a load that uses a part of them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.simulator.cluster.network import LinkSpec, Policy
from disagg_cluster.simulator.cluster.spec import ClusterSpec, EngineSpec
from disagg_cluster.simulator.engine.batch import Request
from disagg_cluster.simulator.engine.roofline import BatchWork, CostModel, Noise
from disagg_cluster.simulator.load import Arrivals, Constant, Lengths, Mix
from disagg_cluster.simulator.prices.shipped import named_costs
from disagg_exporter.model import Role

GPUS_A_NODE = 8
MOST_NODES = 4
Range = Sequence[float]


@dataclass(frozen=True, slots=True)
class Deployment:
    """Engines and the load on them; `load_ratio` is how full the prefill or mixed engines are.

    `request_seconds` is what one request holds one of those for, in the mean; `idle_seconds` the
    time to first token of a mean prompt that meets nobody.
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
        """The role of the engines that read prompts."""
        roles = {engine.role for engine in self.cluster.engines}
        return Role.MIXED if Role.MIXED in roles else Role.PREFILL

    def of(self, role: Role) -> list[EngineSpec]:
        """The engines of a role."""
        return [engine for engine in self.cluster.engines if engine.role is role]

    @property
    def costs(self) -> CostModel:
        """What the steps of its engines cost."""
        return self.cluster.engines[0].step_costs()

    def entries(self) -> list[EngineSpec]:
        """The engines that read prompts."""
        return self.of(self.entry_role)

    def with_engines(self, engines: Sequence[EngineSpec]) -> Deployment:
        """The same with other engines."""
        return replace(self, cluster=replace(self.cluster, engines=tuple(engines)))


def prompt_seconds(
    costs: CostModel, prompt_tokens: int, step_tokens: int, cached_tokens: int = 0
) -> float:
    """How long a prompt holds an engine that is busy: its part of steps that others fill up."""
    seconds, done = 0.0, cached_tokens
    while done < prompt_tokens:
        chunk = min(step_tokens, prompt_tokens - done)
        pairs = step_tokens * done + step_tokens * chunk // 2
        full = BatchWork(step_tokens, pairs, done + step_tokens)
        seconds += costs.price(full).seconds * chunk / step_tokens
        done += chunk
    return seconds


def drawn_requests(mix: Mix, lengths: Lengths, count: int = 200) -> list[Request]:
    """Requests as a load has them."""
    arrivals = Arrivals(Constant(mix), lengths, random.Random(0), 0)
    found: list[Request] = []
    t_ns = 0
    while len(found) < count:
        t_ns, request = arrivals.draw(t_ns)
        if request is not None:
            found.append(request)
    return found


def mean_prompt_seconds(
    costs: CostModel, mix: Mix, lengths: Lengths, step_tokens: int, *, count: int = 200
) -> float:
    """What one prompt of a load holds an engine for, in the mean, prefixes in its cache."""
    requests = drawn_requests(mix, lengths, count)
    return fmean(
        prompt_seconds(
            costs,
            request.prompt_tokens,
            step_tokens,
            0 if request.prefix is None else request.prefix.tokens,
        )
        for request in requests
    )


def writers_at_once(
    costs: CostModel, tokens_per_second: float, kv_tokens: float, prompts_ratio: float = 0.0
) -> float:
    """How many requests write at once on an engine that must write so much.

    Little's law, each token taking a step of that batch. `prompts_ratio`: the part of the time in
    which the engine reads prompts.
    """
    batch = 1.0
    for _ in range(50):
        work = BatchWork(writers=max(1, round(batch)), writers_kv_tokens=batch * kv_tokens)
        now = tokens_per_second * costs.price(work).seconds / max(0.05, 1 - prompts_ratio)
        batch = min(1000.0, (batch + now) / 2)
    return batch


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
    `step_tokens`, `reuse`, `prompt_spread`, `longest`, `most_requests`; each a range, or for
    tables a list of names.
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

    spread = _between(rng, drawn["prompt_spread"])
    longest = _between(rng, drawn["longest"])
    output_spread, prefixes = rng.uniform(0.3, 0.8), rng.choice((4, 8, 16))

    def lengths_of(tokens: float) -> Lengths:
        return Lengths(
            prompt_spread=spread,
            output_spread=output_spread,
            reuse_ratio=reuse_ratio,
            prefixes=prefixes,
            prefix_tokens=round(tokens * _PREFIX_SHARE),
            longest_tokens=round(min(0.25 * kv_room, longest * tokens)),
        )

    def load_of(tokens: float) -> tuple[float, float]:
        """Requests a second, and the seconds of one prompt."""
        mix = Mix(1.0, tokens, output_tokens)
        seconds = mean_prompt_seconds(costs, mix, lengths_of(tokens), step_tokens)
        if mixed:
            # What its tokens take of the steps that it then writes in.
            seconds += output_tokens * _writing_seconds(costs, tokens)
        return load_ratio * entries / seconds, seconds

    rate, seconds = load_of(prompt_tokens)
    # More requests would only cost time.
    most_rate = _between(rng, drawn["most_requests"])
    while rate > most_rate and prompt_tokens < 0.08 * kv_room:
        prompt_tokens *= min(2.0, max(1.1, rate / most_rate))
        rate, seconds = load_of(prompt_tokens)
    lengths = lengths_of(prompt_tokens)
    one = costs.price(BatchWork(writers=1, writers_kv_tokens=prompt_tokens)).seconds
    itl_seconds = max(0.05, 3 * one)
    context = prompt_tokens + output_tokens / 2
    batch = decode_batch(costs, context, 0.8 * itl_seconds, 128)
    batch = max(1, min(batch, int(0.6 * kv_room / context)))
    step_seconds = costs.price(BatchWork(writers=batch, writers_kv_tokens=batch * context)).seconds
    decodes = math.ceil(rate * output_tokens * step_seconds / batch / 0.7)
    first_seconds = prompt_seconds(costs, round(prompt_tokens), step_tokens) + one
    # Targets follow what an idle engine takes, with room for a queue that grows with the load.
    ttft_seconds = first_seconds * rng.uniform(3.0, 5.0) * (1 + spread) + 0.2
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
            router_tells_queue=rng.random() < _KV_ROUTER,
        ),
        Mix(rate, prompt_tokens, output_tokens),
        lengths,
        Targets(ttft_seconds, itl_seconds),
        load_ratio,
        seconds,
        first_seconds,
        (rng.choice(nodes),) if rng.random() < float(str(drawn["frontend"])) else (),
    )


_PREFIX_SHARE = 0.6
"""How much of the mean prompt a shared prefix is."""
_KV_ROUTER = 0.5
"""Routers that look at KV tell how many requests they keep."""


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
