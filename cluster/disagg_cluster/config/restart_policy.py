"""When a worker counts as late, hanging or given up, and how long it has to end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How patient we are with one worker.

    A crash waits `first × factor^(n-1)` seconds for its restart, never more than `max`, less up to
    `jitter_ratio` of it; n counts crashes since the worker was last ready for `steady_seconds`.
    It is given up when n, or the crashes of the last `crash_window_seconds`, reach `crash_limit`.
    A worker that was given up is tried again every `failed_retry_seconds`; never if that is 0.
    `hang_probes` failed probes in a row kill a ready worker that does no work meanwhile, or fewer
    that took as long (they are made every `health_seconds`), but not in its first
    `hang_grace_seconds`. `leftover_seconds` is what the rest of a group gets once its leader died.
    A worker that served under the daemon before us has `resume_seconds` to answer again.
    """

    start_seconds: float = 900.0
    resume_seconds: float = 30.0
    drain_seconds: float = 30.0
    stop_seconds: float = 10.0
    leftover_seconds: float = 1.0
    backoff_first_seconds: float = 1.0
    backoff_factor: float = 2.0
    backoff_max_seconds: float = 60.0
    backoff_jitter_ratio: float = 0.2
    steady_seconds: float = 60.0
    crash_limit: int = 5
    crash_window_seconds: float = 600.0
    failed_retry_seconds: float = 600.0
    health_seconds: float = 1.0
    hang_probes: int = 7
    hang_grace_seconds: float = 10.0
