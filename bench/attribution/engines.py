"""Aggregated engines of the simulator under load, step by step, with the truth of each step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from disagg_cluster.simulator.cluster.spec import EngineSpec
from disagg_cluster.simulator.engine.batch import Sequence, StepBatch
from disagg_cluster.simulator.engine.engine import Engine
from disagg_cluster.simulator.engine.hardware import GPT_OSS_120B, H100, L40S, LLAMA_8B, LLAMA_70B
from disagg_cluster.simulator.engine.roofline import BatchWork as Load
from disagg_cluster.simulator.engine.roofline import CostModel, Noise, Roofline, StepNoise
from disagg_cluster.simulator.engine.scheduler import Scheduler
from disagg_cluster.simulator.load import Arrivals, Lengths, Mix, Shifting
from disagg_cluster.simulator.telemetry.telemetry_emitter import TelemetryEmitter
from disagg_exporter.attribution.cost_model.samples import StepWork
from disagg_exporter.model import Role, Step

NOISE = Noise(step_ratio=0.10, drift_ratio=0.10, drift_period_seconds=600.0)
LENGTHS = Lengths(prompt_spread=0.6, output_spread=0.6, reuse_ratio=0.3, prefix_tokens=64)
# The mean of two equal times is 1.7 % above them.
_SHARP_CORNER = 40.0


class Traffic(NamedTuple):
    """The mean request of an engine's users."""

    prompt_tokens: float
    output_tokens: float = 200.0
    lengths: Lengths = LENGTHS


def aggregated(name: str, gpus: int = 1, **more: object) -> EngineSpec:
    """Return an aggregated engine whose step times are noisy."""
    uuids = tuple(f"{name}-{number}" for number in range(gpus))
    return EngineSpec(name, Role.MIXED, uuids, noise=NOISE, **more)  # type: ignore[arg-type] # fields of EngineSpec, which checks them


ENGINES = (
    aggregated("8B on H100", gpu=H100, model=LLAMA_8B, step_tokens=2048),
    aggregated("8B on L40S", gpu=L40S, model=LLAMA_8B, step_tokens=2048),
    aggregated("70B on 4 H100", gpus=4, gpu=H100, model=LLAMA_70B, step_tokens=2048),
    aggregated("gpt-oss-120b on 2 H100", gpus=2, gpu=H100, model=GPT_OSS_120B, step_tokens=8192),
)


def sharpened(spec: EngineSpec) -> EngineSpec:
    """Return the engine with steps that take the longer of computing and reading, mixed or not."""
    gpu = replace(spec.gpu, flash_attention=3)
    costs = Roofline(gpu, spec.model, len(spec.gpus), corner=_SHARP_CORNER)
    return replace(spec, costs=costs)


@dataclass(frozen=True, slots=True)
class Seen:
    """One step: its record, and what no record contains.

    `share` is the true share of prefill (0 or 1 for a pure step), `interference_seconds` how much
    longer it takes than its parts alone (below 0: shorter), `full` are the exact features, `fpm` is
    the record that a ForwardPassMetrics message would yield. Of `running` requests, `reading` have
    not written a token yet. The step wrote `first_tokens` first tokens; `gaps_ns` counts its
    further tokens by the time since the previous one.
    """

    step: Step
    fpm: Step
    seconds: float
    share: float
    interference_seconds: float
    full: StepWork
    reading: int
    running: int
    first_tokens: int
    gaps_ns: dict[int, int]

    @property
    def mixed(self) -> bool:
        """Whether it prefills and decodes."""
        return bool(self.full.prefill_tokens and self.full.decode_requests)


def run(spec: EngineSpec, traffic: Traffic, steps: int, seed: int) -> Iterator[Seen]:
    """Yield this many steps of an engine under a load."""
    rng = random.Random(f"{seed} {spec.name} {traffic.prompt_tokens}")
    costs = spec.step_costs()
    scheduler = Scheduler(spec.limits())
    engine = Engine(scheduler, costs, StepNoise(spec.noise, rng), longest_run=1)
    emitter = TelemetryEmitter(spec.name, pid=1, incarnation=1)
    arrivals = Arrivals(_load(costs, traffic), traffic.lengths, rng, start_ns=0)
    now_ns, taken = 0, 0
    arrival_ns, request = arrivals.draw(0)
    while taken < steps:
        while arrival_ns <= now_ns:
            if request is not None:
                scheduler.submit(
                    Sequence(
                        request.number,
                        request.prompt_tokens,
                        request.output_tokens,
                        arrival_ns,
                        request.prefix,
                    )
                )
            arrival_ns, request = arrivals.draw(arrival_ns)
        planned = engine.begin(now_ns)
        if planned is None:
            now_ns = arrival_ns
            continue
        prefill, decode = parts(planned.batch)
        truth = true_parts(costs, prefill, decode)
        running = len(scheduler.running)
        reading = sum(not sequence.written for sequence in scheduler.running)
        fpm = _fpm(planned.batch, prefill, decode)
        now_ns = planned.end_ns(1)
        outcome = engine.settle(now_ns)
        assert outcome is not None
        step = emitter.step(outcome, scheduler.state(), now_ns).step
        assert step is not None
        taken += 1
        yield Seen(
            step=step,
            fpm=fpm,
            seconds=outcome.elapsed_ns / 1e9,
            share=truth.share,
            interference_seconds=truth.interference_seconds,
            full=StepWork(
                prefill.context_tokens,
                prefill.context_pairs,
                decode.writers,
                decode.writers_kv_tokens,
            ),
            reading=reading,
            running=running,
            first_tokens=len(outcome.started),
            gaps_ns=outcome.gaps,
        )


def parts(batch: StepBatch) -> tuple[Load, Load]:
    """Return the prefill part and the decode part of a batch (docs/accounting.md, A4)."""
    ends = [s for s in batch.writing if not s.written and not s.received]
    chunks = [*batch.context, *((sequence, 1) for sequence in ends)]
    writers = [s for s in batch.writing if s.written or s.received]
    prefill = Load(
        context_tokens=sum(chunk for _, chunk in chunks),
        context_pairs=sum(c * s.computed + c * (c + 1) // 2 for s, c in chunks),
        context_kv_tokens=sum(s.computed + c for s, c in chunks),
    )
    decode = Load(writers=len(writers), writers_kv_tokens=sum(s.tokens for s in writers))
    return prefill, decode


class TrueParts(NamedTuple):
    """A step by its prices: the share of prefill, and what the mixture costs."""

    share: float
    interference_seconds: float = 0.0


def true_parts(costs: CostModel, prefill: Load, decode: Load) -> TrueParts:
    """Divide a step by the definitions in docs/decisions/0005-mixed-steps.md."""
    if not prefill.context_tokens:
        return TrueParts(0.0)
    if not decode.writers:
        return TrueParts(1.0)
    both = Load(
        prefill.context_tokens,
        prefill.context_pairs,
        prefill.context_kv_tokens,
        decode.writers,
        decode.writers_kv_tokens,
    )
    nothing, first, second, whole = (
        costs.price(load).seconds for load in (Load(), prefill, decode, both)
    )
    adds_first = first - nothing + whole - second
    adds_second = second - nothing + whole - first
    return TrueParts(adds_first / (adds_first + adds_second), whole - first - second + nothing)


def _load(costs: CostModel, traffic: Traffic) -> Shifting:
    """Return a varying load that keeps the engine busy."""
    prompt_tokens, output_tokens, _ = traffic
    prompt = round(prompt_tokens)
    pairs = prompt * prompt // 2
    reading = costs.price(Load(prompt, pairs, prompt)).seconds - costs.price(Load()).seconds
    writers = 64
    kv_tokens = writers * (prompt + output_tokens / 2)
    writing = costs.price(Load(writers=writers, writers_kv_tokens=kv_tokens)).seconds / writers
    rate = 1 / (reading + output_tokens * writing)
    return Shifting(
        Mix(1.0 * rate, prompt_tokens, output_tokens),
        Mix(0.3 * rate, prompt_tokens, output_tokens),
        period_seconds=120.0,
    )


def _fpm(batch: StepBatch, prefill: Load, decode: Load) -> Step:
    """Return a step's record as `disagg_exporter.steps.fpm` makes it, as far as costs need it."""
    return Step(
        t_ns=0,
        elapsed_ns=0,
        sequence=0,
        context_requests=len(batch.context) + len(batch.writing) - decode.writers,
        context_tokens=prefill.context_tokens,
        generation_requests=decode.writers,
        generation_tokens=decode.writers,
        computed_tokens=prefill.context_tokens,
        cached_tokens=prefill.context_kv_tokens - prefill.context_tokens,
        decode_kv_tokens=round(decode.writers_kv_tokens),
    )
