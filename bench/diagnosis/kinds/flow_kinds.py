"""Kinds of scenarios in which it is the load, its routing, or the way of the KV that is wrong."""

from __future__ import annotations

from dataclasses import replace

from bench.diagnosis.kinds.drawing import Draw, Play, keys_of
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
    """One engine gets so many times as many requests as each other."""
    engine = draw.entry()
    return draw.ill([Skewed(*draw.at, {engine.name: draw.ranges.between("weight")})], [engine])


def surge(draw: Draw) -> Play:
    """`over` is the load that it leads to, over what the pool can read."""
    return draw.ill([Surge(*draw.at, draw.ranges.between("over") / draw.deployment.load_ratio)])


def lost_engine(draw: Draw) -> Play:
    """An engine is gone for good, and the others cannot do its work as well."""
    lost = draw.entry()
    others = [each for each in draw.deployment.entries() if each is not lost]
    play = draw.ill([Crash(draw.onset_seconds, lost.name, None)])
    return replace(play, also=(keys_of(others),))


def long_to_one(draw: Draw) -> Play:
    """The longest prompts go to one engine, so many that it has `over` times what it can do.

    They are a quarter of all at most: an engine that is given most of the requests has too many.
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
    return draw.ill([LongToOne(*draw.at, engine.name, least_tokens)], [engine])


def giants(draw: Draw) -> Play:
    """A few prompts are so long that all others wait behind them."""
    deployment = draw.deployment
    usual, longest = deployment.lengths, 0.3 * _kv_tokens(deployment.entries()[0])
    tokens = min(longest, draw.ranges.between("times") * deployment.mix.prompt_tokens)
    then = replace(
        usual,
        giant_ratio=draw.ranges.between("added") * deployment.mix.prompt_tokens / tokens,
        giant_tokens=round(tokens),
    )
    return replace(draw.ill([OtherLengths(*draw.at, then, usual)]), is_chance=True)


def prefixes_lost(draw: Draw) -> Play:
    """Prompts stop to have anything in common."""
    usual = draw.deployment.lengths
    then = replace(usual, prefixes=10**9)
    return draw.ill([OtherLengths(*draw.at, then, usual)])


def slow_link(draw: Draw) -> Play:
    """Transfers from or to one engine are slow."""
    engine = draw.ranges.rng.choice(draw.deployment.cluster.engines)
    return replace(_slow_links(draw, engine), also=_other_end(draw, engine))


def _other_end(draw: Draw, engine: EngineSpec) -> tuple[frozenset[EngineKey], ...]:
    """The only engine at the other end of a link: all that it sends or takes is held up, too."""
    others = [each for each in draw.deployment.cluster.engines if each.role is not engine.role]
    return (keys_of(others), frozenset()) if len(others) == 1 else ()


def slow_links(draw: Draw) -> Play:
    """All transfers are slow."""
    return _slow_links(draw, None)


def _slow_links(draw: Draw, engine: EngineSpec | None) -> Play:
    """The mean prompt then takes so many seconds, as long as all can still be sent."""
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
    return draw.ill(faults, () if engine is None else (engine,))


def failing_link(draw: Draw) -> Play:
    """A part of the transfers from or to one engine, or of all, fails."""
    ratio = draw.ranges.between("ratio")
    if draw.ranges.chance("one"):
        engine = draw.ranges.rng.choice(draw.deployment.cluster.engines)
        play = draw.ill([FailingTransfer(*draw.at, ratio, engine.name)], [engine])
        return replace(play, also=_other_end(draw, engine))
    return draw.ill([FailingTransfer(*draw.at, ratio)])


def decode_slots(draw: Draw) -> Play:
    """Decode engines may write for fewer requests at once than there are."""
    requests = max(1, round(draw.writers() / draw.ranges.between("over")))
    engines = draw.decodes()
    return draw.ill(
        (Resized(*draw.at, each.name, running_requests=requests) for each in engines), engines
    )


def decode_cache(draw: Draw) -> Play:
    """Decode engines whose cache holds fewer requests than there are."""
    mix, engines = draw.deployment.mix, draw.decodes()
    needed = draw.writers() * (mix.prompt_tokens + mix.output_tokens) / draw.ranges.between("over")
    least = 1.1 * (draw.deployment.lengths.longest_tokens + 4 * mix.output_tokens)
    ratio = max(needed, least) / _kv_tokens(engines[0])
    return draw.ill((Resized(*draw.at, each.name, kv_ratio=ratio) for each in engines), engines)


def preallocation(draw: Draw) -> Play:
    """Decode engines keep so much room for outputs that they refuse prompts they could hold."""
    mix, engines = draw.deployment.mix, draw.decodes()
    context = mix.prompt_tokens + mix.output_tokens / 2
    admitted = max(1.0, draw.writers() / draw.ranges.between("over"))
    reserved = round(_kv_tokens(engines[0]) / admitted - context)
    return draw.ill(
        (Resized(*draw.at, each.name, reserved_output_tokens=reserved) for each in engines),
        engines,
    )


def outgrown(draw: Draw) -> Play:
    """Outputs grow, and decode engines that keep room for them refuse prompts they could hold."""
    mix, usual, decodes = draw.deployment.mix, draw.deployment.lengths, draw.decodes()
    # As many as now fit well, and with outputs so many times as long no more.
    admitted = 1.5 * draw.writers() + 1
    reserved = round(_kv_tokens(decodes[0]) / admitted - mix.prompt_tokens - mix.output_tokens)
    keeping = [
        replace(each, reserved_output_tokens=reserved) if each in decodes else each
        for each in draw.deployment.cluster.engines
    ]
    then = replace(usual, output_factor=draw.ranges.between("times"))
    changed = replace(draw, deployment=draw.deployment.with_engines(keeping))
    return changed.ill([OtherLengths(*draw.at, then, usual)], decodes)


def infeasible(draw: Draw) -> Play:
    """Nothing is wrong, but not even an idle engine keeps what was promised."""
    targets, play = draw.deployment.targets, draw.well()
    asked = replace(targets, ttft_seconds=0.5 * draw.deployment.idle_seconds)
    deployment = replace(draw.deployment, targets=asked)
    return replace(play, deployment=deployment, keeps_targets=False)


def latency_floor(draw: Draw) -> Play:
    """So much passes before an engine has a request, however few there are."""
    seconds = draw.ranges.between("target_share") * draw.deployment.targets.ttft_seconds
    if draw.decodes() and draw.ranges.rng.random() < 0.5:
        return draw.ill([LatencyFloor(*draw.at, before_decode_seconds=seconds)])
    return draw.ill([LatencyFloor(*draw.at, before_entry_seconds=seconds)])


def serial_router(draw: Draw) -> Play:
    """The router takes one request after the other, and needs `over` times its time for all."""
    seconds = draw.ranges.between("over") / draw.deployment.mix.requests_per_second
    return draw.ill([SlowRouter(*draw.at, seconds)])


def bounded_router(draw: Draw) -> Play:
    """The router lets each mixed engine have fewer requests at once than there are."""
    requests = max(1, round(draw.writers() / draw.ranges.between("over")))
    return draw.ill([BoundedRouter(*draw.at, requests)])


def _kv_tokens(engine: EngineSpec) -> int:
    limits = engine.limits()
    return limits.kv_blocks * limits.block_tokens
