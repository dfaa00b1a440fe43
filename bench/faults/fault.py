"""Faults, what was observed of them, and the judgement of that; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.faults.scene import Scene, Victim

REPORTED_SECONDS = 10.0
"""The page must report a state within this time of its cause."""

Inject = Callable[["Scene", "Victim"], None]


@dataclass(frozen=True, slots=True)
class Expected:
    """The required outcome for the victim of a fault.

    Args:
        state: The state that the page must report, a name in `scene.STATES`; empty if none.
        reported_seconds: Within how long of the end of the injection.
        dies: Whether its process may be another one afterwards; otherwise it must be the same.
        resets: Prefixes of the names of counters that may restart at zero, because the place where
            they were kept was destroyed.
        recovered_seconds: Within how long of the healing all workers must be ready again.
    """

    state: str = ""
    reported_seconds: float = REPORTED_SECONDS
    dies: bool = True
    resets: tuple[str, ...] = ()
    recovered_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that can be injected, and its required outcome.

    Args:
        name: Unique in its campaign.
        inject: Injects it; returns when that is done.
        expected: The required outcome.
        heal: Removes its cause, `lasts_seconds` after it began.
        weight: How often it is drawn, relative to others of its campaign.
    """

    name: str
    inject: Inject
    expected: Expected = Expected()
    heal: Inject | None = None
    lasts_seconds: float = 0.0
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Observed:
    """What was observed from just before a fault until the node had recovered.

    `reported_seconds` and `recovered_seconds` are None for what never happened. `lost` and
    `answered` are requests of engines that the fault did not target; `moved` are those of them with
    another process than before. `back` are counters that went back, `doubled` workers with two
    processes at a time, `left` processes that should have ended with the fault and did not.
    """

    reported_seconds: float | None = None
    recovered_seconds: float | None = None
    same_process: bool = True
    lost: int = 0
    answered: int = 0
    moved: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    error: str = ""


def judge(expected: Expected, observed: Observed) -> tuple[str, ...]:
    """Return everything wrong with what was observed; empty if nothing is."""
    bad: list[str] = []
    if observed.error:
        bad.append(f"could not be judged: {observed.error}")
    if observed.recovered_seconds is None:
        bad.append("a worker stays dead")
    elif observed.recovered_seconds > expected.recovered_seconds:
        bad.append(f"recovered only after {observed.recovered_seconds:.1f} s")
    if expected.state and observed.reported_seconds is None:
        bad.append(f"never reported: {expected.state}")
    elif (
        observed.reported_seconds is not None
        and observed.reported_seconds > expected.reported_seconds
    ):
        bad.append(f"reported only after {observed.reported_seconds:.1f} s")
    if not expected.dies and not observed.same_process:
        bad.append("killed although it serves")
    if observed.lost:
        bad.append(f"{observed.lost} requests of untouched engines lost")
    bad += [f"untouched, but restarted: {name}" for name in observed.moved]
    back = [series for series in observed.back if not series.startswith(expected.resets)]
    if back:
        bad.append(f"{len(back)} counters went back, such as {back[0]}")
    bad += [f"two processes: {name}" for name in observed.doubled]
    bad += [f"left behind: {name}" for name in observed.left]
    return tuple(bad)


@dataclass(frozen=True, slots=True)
class Covered:
    """GPU-seconds over a stretch in which daemons were killed.

    `wall` is devices × seconds; `reported` the growth of the counters of phases and of unobserved
    seconds, `unobserved` the latter part of it; `engines` and `phases` are seconds by phase, by the
    growth of the engines' own totals and of the counters.
    """

    wall: float
    reported: float
    unobserved: float
    engines: Mapping[str, float]
    phases: Mapping[str, float]


_LEAST_SHARE, _MOST_PHASE_ERROR = 0.995, 0.02


def judge_coverage(covered: Covered) -> tuple[str, ...]:
    """Return which GPU-seconds are missing or attributed to the wrong phase."""
    bad: list[str] = []
    share = covered.reported / covered.wall if covered.wall else 0.0
    if not _LEAST_SHARE <= share <= 2 - _LEAST_SHARE:
        bad.append(f"{100 * share:.2f} % of GPU-seconds reported")
    for phase, truth in covered.engines.items():
        counted = covered.phases.get(phase, 0.0)
        if truth > 0 and abs(counted / truth - 1) > _MOST_PHASE_ERROR:
            off = 100 * (counted / truth - 1)
            bad.append(f"{phase}: {counted:.2f} s reported of {truth:.2f} s ({off:+.1f} %)")
    return tuple(bad)
