"""Kinds of scenarios with faults of engines: GPUs, host, limits, restarts."""

from __future__ import annotations

from dataclasses import replace

from bench.diagnosis.kinds.clean_kinds import bursting
from bench.diagnosis.kinds.drawing import Draw, Play, kv_tokens
from bench.diagnosis.occupancy import mean_prompt_seconds

from disagg_cluster.simulator.engine.roofline import BatchWork
from disagg_cluster.simulator.engine_faults import Crash, Slow, SlowHost, SlowMixedSteps
from disagg_cluster.simulator.gpu_faults import MemoryErrors, StrangerOnGpu, Throttled
from disagg_cluster.simulator.limit_faults import NoPrefixCaching, Resized
from disagg_exporter.model import Throttle


def throttled(draw: Draw) -> Play:
    """All GPUs of an engine are throttled by heat."""
    return _clocked(draw, Throttle.THERMAL)


def power_capped(draw: Draw) -> Play:
    """All GPUs of an engine are throttled by their power cap."""
    return _clocked(draw, Throttle.POWER_CAP)


def _clocked(draw: Draw, reason: Throttle) -> Play:
    engine, clock_ratio = draw.entry(), draw.ranges.between("clock")
    return draw.faulty(
        (Throttled(*draw.at, gpu, clock_ratio, reason) for gpu in engine.gpus), [engine]
    )


def sick(draw: Draw) -> Play:
    """An engine's steps are slow at normal clocks; its GPU memory may have errors."""
    engine = draw.entry()
    faults = [Slow(*draw.at, engine.name, draw.ranges.between("factor"))]
    if draw.ranges.chance("memory_errors"):
        onset_seconds, gpu = draw.onset_seconds, draw.ranges.rng.choice(engine.gpus)
        errors = [MemoryErrors(onset_seconds + 10.0 * n, gpu, 7) for n in range(12)]
        return draw.faulty((*faults, *errors), [engine])
    return draw.faulty(faults, [engine])


def straggler(draw: Draw) -> Play:
    """One GPU of a group is throttled; the others wait for it."""
    engine, clock_ratio = draw.entry(), draw.ranges.between("clock")
    reason = draw.ranges.rng.choice((Throttle.THERMAL, Throttle.POWER_CAP, Throttle.HW_SLOWDOWN))
    return draw.faulty(
        [Throttled(*draw.at, draw.ranges.rng.choice(engine.gpus), clock_ratio, reason)], [engine]
    )


def stranger(draw: Draw) -> Play:
    """Another process uses one GPU of an engine."""
    engine, sm_ratio = draw.entry(), draw.ranges.between("sm")
    return draw.faulty(
        [StrangerOnGpu(*draw.at, draw.ranges.rng.choice(engine.gpus), sm_ratio)], [engine]
    )


def host_bound(draw: Draw) -> Play:
    """The host delays each step until the load of an engine is `over` times its capacity."""
    engines, deployment = draw.entry_or_all(), draw.deployment
    step_tokens = engines[0].step_tokens
    work = BatchWork(step_tokens, step_tokens * step_tokens // 2, step_tokens)
    step_seconds = deployment.costs.price(work).seconds
    gap_seconds = step_seconds * (draw.ranges.between("over") / deployment.load_ratio - 1)
    return draw.faulty((SlowHost(*draw.at, each.name, gap_seconds) for each in engines), engines)


def mixing(draw: Draw) -> Play:
    """Mixed steps take longer than prefill and decode steps apart.

    If so from the start, only on one engine: a fault of all would have no baseline.
    """
    engines, factor = draw.entry_or_all(), draw.ranges.between("factor")
    if draw.onset_seconds <= 0:
        engines = engines[:1]
    return draw.faulty((SlowMixedSteps(*draw.at, each.name, factor) for each in engines), engines)


def small_steps(draw: Draw) -> Play:
    """Steps so small that the load of engines is `over` times their capacity."""
    engines, over = draw.entry_or_all(), draw.ranges.between("over")
    usual = step_tokens = engines[0].step_tokens
    needed = over / draw.deployment.load_ratio * _prompt_seconds(draw, usual)
    while step_tokens > 16 and _prompt_seconds(draw, step_tokens) < needed:
        step_tokens = round(step_tokens * 0.8)
    faults = (Resized(*draw.at, each.name, step_tokens=step_tokens) for each in engines)
    return draw.faulty(faults, engines)


def _prompt_seconds(draw: Draw, step_tokens: int) -> float:
    deployment = draw.deployment
    return mean_prompt_seconds(
        deployment.costs, deployment.mix, deployment.lengths, step_tokens, count=20
    )


def large_steps(draw: Draw) -> Play:
    """Steps so large that each prompt waits for the many others of a burst."""
    engines = draw.entry_or_all()
    step_tokens = round(draw.ranges.between("step_tokens_then"))
    faults = (Resized(*draw.at, each.name, step_tokens=step_tokens) for each in engines)
    return replace(draw.faulty(faults, engines), load=bursting(draw))


def few_slots(draw: Draw) -> Play:
    """Mixed engines with fewer batch slots than concurrent requests, which queue."""
    engines = draw.entry_or_all()
    requests = max(1, round(draw.writers() / draw.ranges.between("over")))
    faults = (Resized(*draw.at, each.name, running_requests=requests) for each in engines)
    return draw.faulty(faults, engines)


def small_cache(draw: Draw) -> Play:
    """Mixed engines whose cache holds fewer requests than are concurrent."""
    engines, mix = draw.entry_or_all(), draw.deployment.mix
    context = mix.prompt_tokens + mix.output_tokens
    needed = context * draw.writers() / draw.ranges.between("over")
    held = max(needed, 1.05 * (draw.deployment.lengths.longest_tokens + 4 * mix.output_tokens))
    ratio = held / kv_tokens(engines[0])
    return draw.faulty((Resized(*draw.at, each.name, kv_ratio=ratio) for each in engines), engines)


def no_prefix_caching(draw: Draw) -> Play:
    """Engines without prefix cache hits."""
    engines = draw.entry_or_all()
    return draw.faulty((NoPrefixCaching(*draw.at, each.name) for each in engines), engines)


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
    return changed.faulty([Crash(crash_seconds, engine.name, 1.0)], [cold])
