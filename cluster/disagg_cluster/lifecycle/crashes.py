"""What a crash or a refused start leads to: another start after a back-off, or giving up."""

from __future__ import annotations

from dataclasses import replace

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.lifecycle.state import Life, Presence, WorkerState, to_ns

# 2.0 ** 1024 overflows; no back-off needs more doublings than this to reach its maximum.
_MAX_DOUBLINGS = 64

# A start that the system refused is soon tried again, whatever the policy says of crashes: it is
# not the engine that has to rest. Never at once, though: the refusal may come as fast.
_LEAST_REFUSED_SECONDS, _MOST_REFUSED_SECONDS = 0.5, 10.0


def backoff_seconds(streak: int, policy: RestartPolicy, jitter: float) -> float:
    """How long the restart after the `streak`-th crash in a row waits; never above the maximum.

    Args:
        streak: Crashes since the worker last was steady, this one included.
        policy: First wait, factor, maximum and share of jitter.
        jitter: 0 for the whole wait, 1 for the wait less all of its jitter.
    """
    doublings = min(max(streak - 1, 0), _MAX_DOUBLINGS)
    full = policy.backoff_first_seconds * policy.backoff_factor**doublings
    return min(full, policy.backoff_max_seconds) * (1.0 - policy.backoff_jitter_ratio * jitter)


def crashed(life: Life, now_ns: int, policy: RestartPolicy, jitter: float) -> tuple[Life, str]:
    """Count a crash of now; the life is then in `backoff` or `failed`, and why is said.

    Two counts can end it. The streak catches an engine that needs minutes to come up and dies
    each time, the window one that comes up well and never lasts.
    """
    ready_ns = now_ns - life.since_ns if life.state is WorkerState.READY else -1
    steady = ready_ns >= to_ns(policy.steady_seconds)
    # One that was given up and tried again needs no more than the limit to be given up anew.
    streak = 1 if steady else min(life.streak + 1, policy.crash_limit)
    window_ns = now_ns - to_ns(policy.crash_window_seconds)
    crashes_ns = (*(t for t in life.crashes_ns if t > window_ns), now_ns)[-policy.crash_limit :]
    counted = replace(life, streak=streak, crashes_ns=crashes_ns)

    crashes = max(streak, len(crashes_ns))
    if crashes >= policy.crash_limit:
        failed = counted.into(WorkerState.FAILED, now_ns)
        retry = policy.failed_retry_seconds
        again = f", tried again in {retry:g} s" if retry > 0 else ""
        return failed, f"given up after {crashes} crashes{again}"
    seconds = backoff_seconds(streak, policy, jitter)
    waiting = counted.into(WorkerState.BACKOFF, now_ns)
    return replace(waiting, retry_ns=now_ns + to_ns(seconds)), f"next start in {seconds:.1f} s"


def not_started(life: Life, now_ns: int, wait_ns: int = 0) -> Life:
    """The life after a start that was decided and never made: no crash, and no restart either."""
    # `restarts` was raised when the start was decided.
    unmade = replace(life, presence=Presence.GONE, restarts=life.restarts - (life.streak > 0))
    return replace(unmade.into(WorkerState.BACKOFF, now_ns), retry_ns=now_ns + wait_ns)


def refused(life: Life, now_ns: int, policy: RestartPolicy, jitter: float) -> tuple[Life, str]:
    """The life after a start that the system refused, and what is said: tried again for ever."""
    refusals = life.refusals + 1
    usual = backoff_seconds(refusals, policy, jitter)
    seconds = min(max(usual, _LEAST_REFUSED_SECONDS), _MOST_REFUSED_SECONDS)
    waiting = replace(not_started(life, now_ns, to_ns(seconds)), refusals=refusals)
    return waiting, f"not counted as a crash, tried again in {seconds:.1f} s"
