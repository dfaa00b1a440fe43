"""Outcomes and standings as the plugin's `Facts`, which both it and stand-in engines send."""

from __future__ import annotations

from disagg_cluster.simulator.engine.batch import Standing
from disagg_cluster.simulator.engine.steps import Outcome
from disagg_exporter.inside_engine.disagg_steps.counting import Facts


def facts_of(outcome: Outcome, standing: Standing) -> Facts:
    """What steps that have ended were; more than one at once as if they were one long step."""
    return Facts(
        elapsed_ns=outcome.elapsed_ns,
        context_requests=outcome.context_requests,
        context_tokens=outcome.context_tokens,
        generation_requests=outcome.generation_requests,
        generation_tokens=outcome.generation_tokens * outcome.count,
        computed_tokens=outcome.computed_tokens,
        cached_tokens=outcome.cached_tokens,
        external_tokens=outcome.external_tokens,
        running=standing.running,
        waiting=standing.waiting,
        deferred=standing.deferred,
        kv_usage_ratio=standing.kv_usage_ratio,
        preemptions=outcome.preempted,
    )


def state_of(standing: Standing) -> Facts:
    """The state of an engine, with no step behind it."""
    return Facts(
        running=standing.running,
        waiting=standing.waiting,
        deferred=standing.deferred,
        kv_usage_ratio=standing.kv_usage_ratio,
    )
