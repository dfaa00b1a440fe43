"""How patient a node file asks us to be with a process: to start, to end, to be started again."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.config.section import Section
from disagg_cluster.config.values import Amount, Count, Seconds

_USUAL = RestartPolicy()


class Deadlines(Section):
    """How long a worker may take before the next, stronger measure."""

    start_seconds: Seconds = Field(
        default=_USUAL.start_seconds, description="seconds, a number above 0"
    )
    drain_seconds: Seconds = Field(
        default=_USUAL.drain_seconds, description="seconds, a number above 0"
    )
    stop_seconds: Seconds = Field(
        default=_USUAL.stop_seconds, description="seconds, a number above 0"
    )


class Changeable(Section):
    """What the node says for all its workers, and each may say otherwise."""

    def with_changes(self, changes: Self | None) -> Self:
        """This with everything that `changes` says and leaves to no default."""
        if changes is None:
            return self
        said = {name: getattr(changes, name) for name in changes.model_fields_set}
        return self.model_copy(update=said)


class HealthProbes(Changeable):
    """How a worker is asked whether it is well."""

    # More would be no number of seconds to a socket, and no answer to anybody.
    timeout_seconds: Annotated[Seconds, Field(le=300)] = Field(
        default=2.0, description="seconds, a number above 0 and up to 300"
    )
    grace_seconds: Amount = Field(
        default=_USUAL.hang_grace_seconds, description="seconds, a number from 0 up"
    )


class Restart(Changeable):
    """When a worker that crashed or hangs is started again, and when it is given up."""

    backoff_first_seconds: Amount = Field(
        default=_USUAL.backoff_first_seconds, description="seconds, a number from 0 up"
    )
    backoff_max_seconds: Amount = Field(
        default=_USUAL.backoff_max_seconds, description="seconds, a number from 0 up"
    )
    crash_limit: Count = Field(
        default=_USUAL.crash_limit, description="a number of crashes, 1 or more"
    )
    crash_window_seconds: Seconds = Field(
        default=_USUAL.crash_window_seconds, description="seconds, a number above 0"
    )
    hang_probes: Count = Field(
        default=_USUAL.hang_probes, description="a number of health probes, 1 or more"
    )
    failed_retry_seconds: Amount = Field(
        default=_USUAL.failed_retry_seconds, description="seconds, a number from 0 up"
    )


USUAL_PROBES = HealthProbes()
"""How a node probes that says nothing of it."""


def policy(
    deadlines: Deadlines,
    restart: Restart,
    health: HealthProbes = USUAL_PROBES,
    health_seconds: float = _USUAL.health_seconds,
) -> RestartPolicy:
    """The patience of the supervisor, in its own words; it probes every `health_seconds`."""
    return RestartPolicy(
        **dict(deadlines),
        **dict(restart),
        hang_grace_seconds=health.grace_seconds,
        health_seconds=health_seconds,
    )
