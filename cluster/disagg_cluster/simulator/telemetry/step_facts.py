"""Steps of a simulated scheduler, in the format of the plugin inside a real engine.

Separate from the conversion into records, which needs numpy: a stand-in engine starts in half the
time.
"""

from __future__ import annotations

from disagg_cluster.simulator.engine.batch import Outcome, SchedulerState
from disagg_exporter.inside_engine.disagg_steps.counting import Facts


def facts_of(outcome: Outcome, state: SchedulerState) -> Facts:
    """Return the facts of ended steps; several at once as if they were one long step."""
    return Facts(
        outcome.elapsed_ns,
        outcome.context_requests,
        outcome.context_tokens,
        outcome.generation_requests,
        outcome.generation_tokens * outcome.count,
        computed_tokens=outcome.computed_tokens,
        cached_tokens=outcome.cached_tokens,
        external_tokens=outcome.external_tokens,
        running=state.running,
        waiting=state.waiting,
        deferred=state.deferred,
        kv_usage_ratio=state.kv_usage_ratio,
        preemptions=outcome.preempted,
    )


def state_of(state: SchedulerState) -> Facts:
    """Return the state of an engine, without a step."""
    return Facts(
        running=state.running,
        waiting=state.waiting,
        deferred=state.deferred,
        kv_usage_ratio=state.kv_usage_ratio,
    )
