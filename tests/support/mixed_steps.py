"""Checks on the records of an engine that does both phases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from disagg_exporter.attribution.cost_model.cost import StepCost
from disagg_exporter.attribution.cost_model.samples import Proxies
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Phase, Step
from disagg_exporter.steps.rows import kind_of
from support.accounting import NodeAccounting, StepReporter
from support.single_steps import read


def accounted_seconds(steps: Sequence[Step], *, overlapped: bool) -> float:
    """Return the GPU-seconds that are accounted to an engine for its records."""
    node, reporter = NodeAccounting(), StepReporter()
    node.engine()
    first = steps[0].t_ns / 1e9 - steps[0].elapsed_ns / 1e9 - 1
    node.beat(reporter, 0, overlapped=overlapped)
    for step in steps:
        t = step.t_ns / 1e9 - first
        node.step(reporter, reporter.step(t, step.elapsed_ns / 1e9, **_counts(step)))
        node.advance(t)
    end = steps[-1].t_ns / 1e9 - first
    for second in range(1, 30):
        node.beat(reporter, end + second, overlapped=overlapped)
        node.advance(end + second)
    used = node.engine_seconds(end + 29)
    assert node.cut(end + 29) == 0
    return used[Phase.PREFILL] + used[Phase.DECODE]


def mixed_errors(steps: Iterable[tuple[Step, int]]) -> list[float]:
    """Learn from the steps of one phase alone; return the errors of predicting mixed ones.

    `steps` are records with their lengths in nanoseconds. Errors are relative.
    """
    cost, proxies = StepCost(kv_in_tokens=False), Proxies()
    held_back = []
    for step, length_ns in steps:
        kind = kind_of(step)
        work = read(proxies, step, kind)
        if kind == wire.MIXED:
            held_back.append((work, length_ns / 1e9))
        else:
            cost.learn(work, length_ns / 1e9)
    errors = []
    for work, seconds in held_back:
        expected = cost.expect(work)
        assert expected is not None
        errors.append(abs(expected / seconds - 1))
    return errors


def median_error(steps: Iterable[tuple[Step, int]]) -> float:
    """Return the median of `mixed_errors`."""
    return median(mixed_errors(steps))


def _counts(step: Step) -> dict[str, object]:
    return {
        "context_requests": step.context_requests,
        "context_tokens": step.context_tokens,
        "generation_requests": step.generation_requests,
        "generation_tokens": step.generation_tokens,
        "computed_tokens": step.computed_tokens,
        "cached_tokens": step.cached_tokens,
        "external_tokens": step.external_tokens,
        "running": step.running,
        "waiting": step.waiting,
        "deferred": step.deferred,
        "kv_usage_ratio": step.kv_usage_ratio,
    }
