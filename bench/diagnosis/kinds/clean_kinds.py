"""Kinds of scenarios without a fault, or with one that costs nothing."""

from __future__ import annotations

from dataclasses import replace

from bench.diagnosis.kinds.drawing import Draw, Play

from disagg_cluster.simulator.engine.roofline import Noise
from disagg_cluster.simulator.load import Shifting, Trace


def steady(draw: Draw) -> Play:
    """A constant load."""
    return draw.clean()


def changing(draw: Draw) -> Play:
    """A load that alternates between high and low."""
    mix, swing = draw.deployment.mix, draw.ranges.between("swing")
    high, low = (
        replace(mix, requests_per_second=mix.requests_per_second * factor)
        for factor in (1 + swing, 1 - swing)
    )
    return draw.clean(Shifting(high, low, draw.ranges.between("period_seconds")))


def bursts(draw: Draw) -> Play:
    """Short bursts."""
    return draw.clean(bursting(draw))


def bursting(draw: Draw) -> Trace:
    """A load in bursts, and calmer in seven steps of eight so that the mean stays."""
    mix, seconds = draw.deployment.mix, draw.ranges.between("burst_seconds")
    factor = draw.ranges.between("burst")
    burst = replace(mix, requests_per_second=mix.requests_per_second * factor)
    calm = replace(mix, requests_per_second=mix.requests_per_second * max(0.1, (8 - factor) / 7))
    steps = [burst if draw.ranges.rng.random() < 1 / 8 else calm for _ in range(200)]
    return Trace(seconds, tuple(steps))


def noisy_steps(draw: Draw) -> Play:
    """Steps whose durations vary and drift."""
    noise = Noise(
        draw.ranges.between("step_noise"),
        draw.ranges.between("drift"),
        draw.ranges.rng.uniform(120, 900),
    )
    engines = [replace(each, noise=noise) for each in draw.deployment.cluster.engines]
    return replace(draw, deployment=draw.deployment.with_engines(engines)).clean()
