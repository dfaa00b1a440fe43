"""One worker as it should be, and what those who keep workers need from outside."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from disagg_cluster.command import Command
from disagg_cluster.life import Policy, WorkerState
from disagg_cluster.readiness import ProbeResult, Target
from disagg_exporter.model import EnginePage

OnChange = Callable[[str, WorkerState, WorkerState, int | None, str], None]
"""Told worker, old state, new state, pid (None without a process) and why, inside the loop.

After every change of state and of the process: a restart without back-off goes from `ready` or
`starting` straight to `starting` with another pid, and a worker that was killed because it hung is
told twice in `backoff`, with its pid and, when nothing is left of it, with None.
"""

Probe = Callable[[Target, int, float, frozenset[int]], ProbeResult]
"""As `readiness.probe`."""


@dataclass(frozen=True, slots=True)
class Post:
    """What to run, where its log goes, where it should answer, how patient to be with it."""

    name: str
    command: Command
    log_path: Path
    target: Target
    policy: Policy
    cwd: Path | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a keeper needs from outside.

    `page_of` gives the last metrics page of a worker, None if there is none. `environment` is what
    children inherit. `clock` is CLOCK_MONOTONIC in ns, `wall` Unix seconds, `jitter` draws from
    0..1.
    """

    on_change: OnChange
    page_of: Callable[[str], EnginePage | None]
    probe: Probe
    executor: Executor
    environment: Mapping[str, str]
    health_seconds: float
    probe_seconds: float
    clock: Callable[[], int]
    wall: Callable[[], float]
    jitter: Callable[[], float]
    log: logging.Logger
