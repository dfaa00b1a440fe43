"""Faults of an engine: deaths of all sorts, hangs, and harmless slowness."""

from __future__ import annotations

import signal
import time

from bench.faults import processes
from bench.faults.fault import Expected, Fault
from bench.faults.scene import Scene, Victim

SERVES = Expected(dies=False, recovered_seconds=20.0)
DIES = Expected(state="a restart")


def _killed(_scene: Scene, victim: Victim) -> None:
    victim.kill(signal.SIGKILL)


def _terminated(_scene: Scene, victim: Victim) -> None:
    victim.kill(signal.SIGTERM)


def _aborted(_scene: Scene, victim: Victim) -> None:
    victim.kill(signal.SIGABRT)


def _exits(scene: Scene, victim: Victim) -> None:
    victim.misbehave(exit_code=scene.chance.choice((0, 1, 2, 77, 143, 255)))
    victim.kill(signal.SIGUSR1)


def _stopped(_scene: Scene, victim: Victim) -> None:
    victim.kill(signal.SIGSTOP)


def _goes_on(_scene: Scene, victim: Victim) -> None:
    victim.kill(signal.SIGCONT)


def _slow(_scene: Scene, victim: Victim) -> None:
    victim.misbehave(health_seconds=1.3)


def _quick(_scene: Scene, victim: Victim) -> None:
    victim.misbehave()


def _crashes_while_it_drains(_scene: Scene, victim: Victim) -> None:
    victim.misbehave(at_term=9)
    victim.kill(signal.SIGTERM)


def with_helper(kind: str) -> Fault:
    """Return a fault that kills an engine with a forked helper; the helper must not stay."""

    def inject(_scene: Scene, victim: Victim) -> None:
        victim.misbehave(helper=kind)
        victim.kill(signal.SIGKILL)
        until = time.monotonic() + 30
        while not processes.helpers_of(victim.port) and time.monotonic() < until:
            time.sleep(0.05)
        victim.misbehave()
        victim.kill(signal.SIGKILL)

    return Fault(f"killed beside a helper ({kind})", inject, DIES, heal=_quick, weight=2)


FAULTS = (
    Fault("killed", _killed, DIES, weight=8),
    Fault("ended by somebody else", _terminated, DIES, weight=2),
    Fault("aborted", _aborted, DIES, weight=2),
    Fault("exits by itself", _exits, DIES, heal=_quick, weight=6),
    Fault("stopped for 2 s", _stopped, SERVES, heal=_goes_on, lasts_seconds=2.0, weight=3),
    Fault("hangs", _stopped, Expected(state="an engine that is not up"), weight=3),
    Fault("answers /health in 1.3 s", _slow, SERVES, heal=_quick, lasts_seconds=9.0, weight=2),
    Fault("crashes while it ends", _crashes_while_it_drains, DIES, heal=_quick, weight=2),
    with_helper("fork"),
    with_helper("setsid"),
)
