"""What a crash leads to: a restart after a back-off, or giving up."""

from __future__ import annotations

from dataclasses import replace

from disagg_cluster.life import Life, Policy, WorkerState, to_ns

# 2.0 ** 1024 overflows; no back-off needs more doublings than this to reach its maximum.
_MAX_DOUBLINGS = 64


def backoff_seconds(streak: int, policy: Policy, jitter: float) -> float:
    """How long the restart after the `streak`-th crash in a row waits; never above the maximum.

    Args:
        streak: Crashes since the worker last was steady, this one included.
        policy: First wait, factor, maximum and share of jitter.
        jitter: 0 for the whole wait, 1 for the wait less all of its jitter.
    """
    doublings = min(max(streak - 1, 0), _MAX_DOUBLINGS)
    full = policy.backoff_first_seconds * policy.backoff_factor**doublings
    return min(full, policy.backoff_max_seconds) * (1.0 - policy.backoff_jitter_ratio * jitter)


def crashed(life: Life, now_ns: int, policy: Policy, jitter: float) -> tuple[Life, str]:
    """Count a crash of now; the life is then in `backoff` or `failed`, and why is said.

    Two counts can end it. The streak catches an engine that needs minutes to come up and dies
    each time, the window one that comes up well and never lasts.
    """
    ready_ns = now_ns - life.since_ns if life.state is WorkerState.READY else -1
    streak = 1 if ready_ns >= to_ns(policy.steady_seconds) else life.streak + 1
    window_ns = now_ns - to_ns(policy.crash_window_seconds)
    crashes_ns = (*(t for t in life.crashes_ns if t > window_ns), now_ns)
    counted = replace(life, streak=streak, crashes_ns=crashes_ns)

    crashes = max(streak, len(crashes_ns))
    if crashes >= policy.crash_limit:
        return counted.into(WorkerState.FAILED, now_ns), f"given up after {crashes} crashes"
    seconds = backoff_seconds(streak, policy, jitter)
    waiting = counted.into(WorkerState.BACKOFF, now_ns)
    return replace(waiting, retry_ns=now_ns + to_ns(seconds)), f"next start in {seconds:.1f} s"
