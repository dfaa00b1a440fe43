"""Deadlines, health probes and restarts of a supervised process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field

from disagg_cluster.config.values import Amount, Count, Seconds, Section


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The supervisor's deadlines and restart limits for one worker.

    A crash delays the restart by `backoff_first_seconds` × `backoff_factor`^(n-1), at most
    `backoff_max_seconds`, less up to `backoff_jitter_ratio` of it; n counts crashes since the
    worker was last ready for `steady_seconds`. It is given up when n, or the crashes of the last
    `crash_window_seconds`, reach `crash_limit`. A worker that was given up is retried every
    `failed_retry_seconds`; never if that is 0.
    `hang_probes` failed probes in a row kill a ready worker that does no work meanwhile, or fewer
    that took as long (they are made every `health_seconds`), but not in its first
    `hang_grace_seconds`. `leftover_seconds` is what the rest of a group gets once its leader has
    died. A worker that served under the previous daemon has `resume_seconds` to answer again.
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


_DEFAULTS = RestartPolicy()


class Deadlines(Section):
    """How long a worker may take to start, drain and stop before a stronger measure."""

    start_seconds: Seconds = _DEFAULTS.start_seconds
    drain_seconds: Seconds = _DEFAULTS.drain_seconds
    stop_seconds: Seconds = _DEFAULTS.stop_seconds


class Overridable(Section):
    """Settings of the node for all workers, which each worker may override."""

    def overridden_by(self, other: Self | None) -> Self:
        """Return this section with everything that `other` sets explicitly."""
        if other is None:
            return self
        said = {name: getattr(other, name) for name in other.model_fields_set}
        return self.model_copy(update=said)


class HealthProbes(Overridable):
    """Health probes of a worker."""

    # A socket does not accept much longer timeouts, and no one would wait that long.
    timeout_seconds: Annotated[Seconds, Field(le=300)] = Field(
        default=2.0, description="seconds, a number above 0 and up to 300"
    )
    grace_seconds: Amount = _DEFAULTS.hang_grace_seconds


class Restart(Overridable):
    """When a crashed or hung worker is restarted, and when the daemon gives up on it."""

    backoff_first_seconds: Amount = _DEFAULTS.backoff_first_seconds
    backoff_max_seconds: Amount = _DEFAULTS.backoff_max_seconds
    crash_limit: Count = Field(
        default=_DEFAULTS.crash_limit, description="a number of crashes, 1 or more"
    )
    crash_window_seconds: Seconds = _DEFAULTS.crash_window_seconds
    hang_probes: Count = Field(
        default=_DEFAULTS.hang_probes, description="a number of health probes, 1 or more"
    )
    failed_retry_seconds: Amount = _DEFAULTS.failed_retry_seconds


DEFAULT_PROBES = HealthProbes()
"""The probe settings of a node whose file has none."""


def restart_policy(
    deadlines: Deadlines,
    restart: Restart,
    health: HealthProbes = DEFAULT_PROBES,
    health_seconds: float = _DEFAULTS.health_seconds,
) -> RestartPolicy:
    """Return the supervisor's policy for these settings; it probes every `health_seconds`."""
    return RestartPolicy(
        **dict(deadlines),
        **dict(restart),
        hang_grace_seconds=health.grace_seconds,
        health_seconds=health_seconds,
    )
