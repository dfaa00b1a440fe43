"""Kinds of scenarios in which something is wrong with engines: GPUs, host, limits, restarts."""

from __future__ import annotations

from dataclasses import replace

from bench.diagnosis.kinds.clean_kinds import bursting
from bench.diagnosis.kinds.drawing import Draw, Play
from bench.diagnosis.occupancy import mean_prompt_seconds

from disagg_cluster.simulator.cluster.spec import EngineSpec
from disagg_cluster.simulator.engine.roofline import BatchWork
from disagg_cluster.simulator.engine_faults import Crash, Slow, SlowHost, SlowMixedSteps
from disagg_cluster.simulator.gpu_faults import MemoryErrors, StrangerOnGpu, Throttled
from disagg_cluster.simulator.limit_faults import NoPrefixCaching, Resized
from disagg_exporter.model import Throttle


def throttled(draw: Draw) -> Play:
    """All GPUs of an engine are too hot."""
    return _clocked(draw, Throttle.THERMAL)


def power_capped(draw: Draw) -> Play:
    """All GPUs of an engine are short of power."""
    return _clocked(draw, Throttle.POWER_CAP)


def _clocked(draw: Draw, reason: Throttle) -> Play:
    engine, clock_ratio = draw.entry(), draw.ranges.between("clock")
    return draw.ill(
        (Throttled(*draw.at, gpu, clock_ratio, reason) for gpu in engine.gpus), [engine]
    )


def sick(draw: Draw) -> Play:
    """An engine's steps take longer, and its clocks do not say why; its memory may have errors."""
    engine = draw.entry()
    faults = [Slow(*draw.at, engine.name, draw.ranges.between("factor"))]
    if draw.ranges.chance("memory_errors"):
        onset_seconds, gpu = draw.onset_seconds, draw.ranges.rng.choice(engine.gpus)
        errors = [MemoryErrors(onset_seconds + 10.0 * n, gpu, 7) for n in range(12)]
        return draw.ill((*faults, *errors), [engine])
    return draw.ill(faults, [engine])


def straggler(draw: Draw) -> Play:
    """One GPU of a group is throttled; the others wait for it."""
    engine, clock_ratio = draw.entry(), draw.ranges.between("clock")
    reason = draw.ranges.rng.choice((Throttle.THERMAL, Throttle.POWER_CAP, Throttle.HW_SLOWDOWN))
    return draw.ill(
        [Throttled(*draw.at, draw.ranges.rng.choice(engine.gpus), clock_ratio, reason)], [engine]
    )


def stranger(draw: Draw) -> Play:
    """Somebody else's process works on one GPU of an engine."""
    engine, sm_ratio = draw.entry(), draw.ranges.between("sm")
    return draw.ill(
        [StrangerOnGpu(*draw.at, draw.ranges.rng.choice(engine.gpus), sm_ratio)], [engine]
    )


def host_bound(draw: Draw) -> Play:
    """The host takes so long before each step that an engine needs `over` times its time."""
    engines, deployment = draw.entry_or_all(), draw.deployment
    step_tokens = engines[0].step_tokens
    work = BatchWork(step_tokens, step_tokens * step_tokens // 2, step_tokens)
    step_seconds = deployment.costs.price(work).seconds
    gap_seconds = step_seconds * (draw.ranges.between("over") / deployment.load_ratio - 1)
    return draw.ill((SlowHost(*draw.at, each.name, gap_seconds) for each in engines), engines)


def mixing(draw: Draw) -> Play:
    """Steps with prompts beside requests that write take longer than both apart.

    From the very beginning only on one of several: of all there is nothing to hold them against.
    """
    engines, factor = draw.entry_or_all(), draw.ranges.between("factor")
    if draw.onset_seconds <= 0:
        engines = engines[:1]
    return draw.ill((SlowMixedSteps(*draw.at, each.name, factor) for each in engines), engines)


def small_steps(draw: Draw) -> Play:
    """Steps so small that engines need `over` times their time."""
    engines, over = draw.entry_or_all(), draw.ranges.between("over")
    usual = step_tokens = engines[0].step_tokens
    needed = over / draw.deployment.load_ratio * _prompt_seconds(draw, usual)
    while step_tokens > 16 and _prompt_seconds(draw, step_tokens) < needed:
        step_tokens = round(step_tokens * 0.8)
    faults = (Resized(*draw.at, each.name, step_tokens=step_tokens) for each in engines)
    return draw.ill(faults, engines)


def _prompt_seconds(draw: Draw, step_tokens: int) -> float:
    deployment = draw.deployment
    return mean_prompt_seconds(
        deployment.costs, deployment.mix, deployment.lengths, step_tokens, count=20
    )


def large_steps(draw: Draw) -> Play:
    """Steps so large that whoever is in one waits for the many others of a burst."""
    engines = draw.entry_or_all()
    step_tokens = round(draw.ranges.between("step_tokens_then"))
    faults = (Resized(*draw.at, each.name, step_tokens=step_tokens) for each in engines)
    return replace(draw.ill(faults, engines), load=bursting(draw))


def few_slots(draw: Draw) -> Play:
    """Mixed engines that may write for fewer requests at once than there are, at a queue."""
    engines = draw.entry_or_all()
    requests = max(1, round(draw.writers() / draw.ranges.between("over")))
    faults = (Resized(*draw.at, each.name, running_requests=requests) for each in engines)
    return draw.ill(faults, engines)


def small_cache(draw: Draw) -> Play:
    """Mixed engines whose cache holds fewer requests than there are."""
    engines, mix = draw.entry_or_all(), draw.deployment.mix
    context = mix.prompt_tokens + mix.output_tokens
    needed = context * draw.writers() / draw.ranges.between("over")
    kv_tokens = max(needed, 1.05 * (draw.deployment.lengths.longest_tokens + 4 * mix.output_tokens))
    ratio = kv_tokens / _kv_tokens(engines[0])
    return draw.ill((Resized(*draw.at, each.name, kv_ratio=ratio) for each in engines), engines)


def _kv_tokens(engine: EngineSpec) -> int:
    limits = engine.limits()
    return limits.kv_blocks * limits.block_tokens


def no_prefix_caching(draw: Draw) -> Play:
    """An engine that no longer finds anything in its cache."""
    engines = draw.entry_or_all()
    return draw.ill((NoPrefixCaching(*draw.at, each.name) for each in engines), engines)


def cold_start(draw: Draw) -> Play:
    """An engine is restarted: it is ready at the onset, and its first steps are slow."""
    engine, start_seconds = draw.entry(), draw.ranges.between("start_seconds")
    cold = replace(
        engine,
        start_seconds=start_seconds,
        cold_factor=draw.ranges.between("cold_factor"),
        warm_up_seconds=draw.ranges.between("warm_up_seconds"),
    )
    engines = [cold if each is engine else each for each in draw.deployment.cluster.engines]
    changed = replace(draw, deployment=draw.deployment.with_engines(engines))
    crash_seconds = max(1.0, draw.onset_seconds - start_seconds - 1.0)
    return changed.ill([Crash(crash_seconds, engine.name, 1.0)], [cold])
