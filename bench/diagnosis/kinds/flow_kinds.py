"""Kinds of scenarios with faults of the load, of routing, or of KV transfers."""

from __future__ import annotations

from dataclasses import replace

from bench.diagnosis.kinds.drawing import Draw, Play, keys_of, kv_tokens
from bench.diagnosis.occupancy import drawn_requests

from disagg_cluster.planner.diagnose.verdict.values import EngineKey
from disagg_cluster.simulator.cluster.spec import EngineSpec
from disagg_cluster.simulator.engine_faults import Crash
from disagg_cluster.simulator.limit_faults import Resized
from disagg_cluster.simulator.load_faults import (
    BoundedRouter,
    LatencyFloor,
    LongToOne,
    OtherLengths,
    Skewed,
    SlowRouter,
    Surge,
)
from disagg_cluster.simulator.network_faults import FailingTransfer, SlowTransfer

_LONG_ONE_IN = 4


def favoured(draw: Draw) -> Play:
    """One engine gets `weight` times as many requests as each other."""
    engine = draw.entry()
    return draw.faulty([Skewed(*draw.at, {engine.name: draw.ranges.between("weight")})], [engine])


def surge(draw: Draw) -> Play:
    """More requests, up to `over` times the capacity of the pool that computes prompts."""
    return draw.faulty([Surge(*draw.at, draw.ranges.between("over") / draw.deployment.load_ratio)])


def lost_engine(draw: Draw) -> Play:
    """An engine is gone for good, and the others cannot do its work, too."""
    lost = draw.entry()
    others = [each for each in draw.deployment.entries() if each is not lost]
    play = draw.faulty([Crash(draw.onset_seconds, lost.name, None)])
    return replace(play, also=(keys_of(others),))


def long_to_one(draw: Draw) -> Play:
    """The longest prompts go to one engine, up to `over` times its capacity.

    They are at most a quarter of all prompts: with most of them it would simply have too many.
    """
    engine, deployment = draw.entry(), draw.deployment
    engines = len(deployment.entries())
    load_over = draw.ranges.between("over") / deployment.load_ratio
    wanted_share = min(0.95, (load_over - 1) / max(1, engines - 1))
    tokens = sorted(r.prompt_tokens for r in drawn_requests(deployment.mix, deployment.lengths))
    wanted_tokens = wanted_share * deployment.mix.prompt_tokens * len(tokens)
    taken, least_tokens = 0, tokens[-1]
    for least_tokens in reversed(tokens[-(len(tokens) // _LONG_ONE_IN) :]):
        taken += least_tokens
        if taken >= wanted_tokens:
            break
    return draw.faulty([LongToOne(*draw.at, engine.name, least_tokens)], [engine])


def giants(draw: Draw) -> Play:
    """A few very long prompts make all others wait."""
    deployment = draw.deployment
    usual, longest = deployment.lengths, 0.3 * kv_tokens(deployment.entries()[0])
    tokens = min(longest, draw.ranges.between("times") * deployment.mix.prompt_tokens)
    then = replace(
        usual,
        giant_ratio=draw.ranges.between("added") * deployment.mix.prompt_tokens / tokens,
        giant_tokens=round(tokens),
    )
    return replace(draw.faulty([OtherLengths(*draw.at, then, usual)]), is_chance=True)


def prefixes_lost(draw: Draw) -> Play:
    """Prompts no longer share prefixes."""
    usual = draw.deployment.lengths
    then = replace(usual, prefixes=10**9)
    return draw.faulty([OtherLengths(*draw.at, then, usual)])


def slow_link(draw: Draw) -> Play:
    """Transfers from or to one engine are slow."""
    engine = draw.ranges.rng.choice(draw.deployment.cluster.engines)
    return replace(_slow_links(draw, engine), also=_other_end(draw, engine))


def _other_end(draw: Draw, engine: EngineSpec) -> tuple[frozenset[EngineKey], ...]:
    """The engine at the other end if it is the only one: all its transfers are late, too."""
    others = [each for each in draw.deployment.cluster.engines if each.role is not engine.role]
    return (keys_of(others), frozenset()) if len(others) == 1 else ()


def slow_links(draw: Draw) -> Play:
    """All transfers are slow."""
    return _slow_links(draw, None)


def _slow_links(draw: Draw, engine: EngineSpec | None) -> Play:
    """Slow transfers that take `target_share` of the target, but keep up with the load."""
    deployment, link = draw.deployment, draw.deployment.cluster.link
    kv_bytes = deployment.cluster.engines[0].model.kv_bytes_per_token
    usual = link.latency_seconds + deployment.mix.prompt_tokens * kv_bytes / link.bytes_per_second
    senders = len(deployment.entries()) if engine is None else len(deployment.of(engine.role))
    takers = len(draw.decodes()) if engine is None else senders
    most_seconds = 0.7 * min(senders, takers) / deployment.mix.requests_per_second
    seconds = min(
        draw.ranges.between("target_share") * deployment.targets.ttft_seconds, most_seconds
    )
    name = None if engine is None else engine.name
    faults = [SlowTransfer(*draw.at, max(1.0, seconds / usual), name)]
    return draw.faulty(faults, () if engine is None else (engine,))


def failing_link(draw: Draw) -> Play:
    """A share of the transfers fails: from or to one engine, or of all."""
    ratio = draw.ranges.between("ratio")
    if draw.ranges.chance("one"):
        engine = draw.ranges.rng.choice(draw.deployment.cluster.engines)
        play = draw.faulty([FailingTransfer(*draw.at, ratio, engine.name)], [engine])
        return replace(play, also=_other_end(draw, engine))
    return draw.faulty([FailingTransfer(*draw.at, ratio)])


def decode_slots(draw: Draw) -> Play:
    """Decode engines with fewer batch slots than concurrent requests."""
    requests = max(1, round(draw.writers() / draw.ranges.between("over")))
    engines = draw.decodes()
    return draw.faulty(
        (Resized(*draw.at, each.name, running_requests=requests) for each in engines), engines
    )


def decode_cache(draw: Draw) -> Play:
    """Decode engines whose cache holds fewer requests than are concurrent."""
    mix, engines = draw.deployment.mix, draw.decodes()
    needed = draw.writers() * (mix.prompt_tokens + mix.output_tokens) / draw.ranges.between("over")
    least = 1.1 * (draw.deployment.lengths.longest_tokens + 4 * mix.output_tokens)
    ratio = max(needed, least) / kv_tokens(engines[0])
    return draw.faulty((Resized(*draw.at, each.name, kv_ratio=ratio) for each in engines), engines)


def preallocation(draw: Draw) -> Play:
    """Decode engines reserve so much room for outputs that they refuse prompts they could hold."""
    mix, engines = draw.deployment.mix, draw.decodes()
    context = mix.prompt_tokens + mix.output_tokens / 2
    admitted = max(1.0, draw.writers() / draw.ranges.between("over"))
    reserved = round(kv_tokens(engines[0]) / admitted - context)
    return draw.faulty(
        (Resized(*draw.at, each.name, reserved_output_tokens=reserved) for each in engines),
        engines,
    )


def outgrown(draw: Draw) -> Play:
    """Outputs grow, and decode engines that reserve room refuse prompts they could hold."""
    mix, usual, decodes = draw.deployment.mix, draw.deployment.lengths, draw.decodes()
    # The present requests fit well; with outputs `times` as long they no longer do.
    admitted = 1.5 * draw.writers() + 1
    reserved = round(kv_tokens(decodes[0]) / admitted - mix.prompt_tokens - mix.output_tokens)
    keeping = [
        replace(each, reserved_output_tokens=reserved) if each in decodes else each
        for each in draw.deployment.cluster.engines
    ]
    then = replace(usual, output_factor=draw.ranges.between("times"))
    changed = replace(draw, deployment=draw.deployment.with_engines(keeping))
    return changed.faulty([OtherLengths(*draw.at, then, usual)], decodes)


def infeasible(draw: Draw) -> Play:
    """No fault, but even an idle engine misses the target."""
    targets, play = draw.deployment.targets, draw.clean()
    asked = replace(targets, ttft_seconds=0.5 * draw.deployment.idle_seconds)
    deployment = replace(draw.deployment, targets=asked)
    return replace(play, deployment=deployment, keeps_targets=False)


def latency_floor(draw: Draw) -> Play:
    """A constant delay before an engine has a request, at any load."""
    seconds = draw.ranges.between("target_share") * draw.deployment.targets.ttft_seconds
    if draw.decodes() and draw.ranges.rng.random() < 0.5:
        return draw.faulty([LatencyFloor(*draw.at, before_decode_seconds=seconds)])
    return draw.faulty([LatencyFloor(*draw.at, before_entry_seconds=seconds)])


def serial_router(draw: Draw) -> Play:
    """The router handles one request at a time; the load is `over` times its capacity."""
    seconds = draw.ranges.between("over") / draw.deployment.mix.requests_per_second
    return draw.faulty([SlowRouter(*draw.at, seconds)])


def bounded_router(draw: Draw) -> Play:
    """The router limits each mixed engine to fewer requests than are concurrent."""
    requests = max(1, round(draw.writers() / draw.ranges.between("over")))
    return draw.faulty([BoundedRouter(*draw.at, requests)])
