"""What a fault is, what was seen of one, and what that is worth; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.faults.scene import Scene, Victim

TOLD_SECONDS = 10.0
"""Within so long the page must tell a state, from its cause on."""

Inject = Callable[["Scene", "Victim"], None]


@dataclass(frozen=True, slots=True)
class Expected:
    """What must become of the victim of a fault.

    Args:
        told: Which state the page must tell, a name of `scene.TOLD`; empty if there is none.
        told_seconds: Within how long, from the end of the injection on.
        dies: Whether its process may be another afterwards; otherwise it must be the same.
        resets: Counters that may begin anew, by how their names begin: what they were kept in was
            destroyed.
        well_seconds: How long after the fault was healed all workers must be ready again.
    """

    told: str = ""
    told_seconds: float = TOLD_SECONDS
    dies: bool = True
    resets: tuple[str, ...] = ()
    well_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to do harm, and how it ends.

    Args:
        name: Once in its campaign.
        inject: Does it; returns when it is done.
        expected: What must come of it.
        heal: Takes its cause away, `lasts_seconds` after it began.
        weight: How often it is drawn, beside others of its campaign.
    """

    name: str
    inject: Inject
    expected: Expected = Expected()
    heal: Inject | None = None
    lasts_seconds: float = 0.0
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen from just before a fault until all was well again.

    `told_seconds` and `well_seconds` are None for what never came. `lost` and `answered` are
    requests of engines that the fault did not aim at; `moved` are those of them with another
    process than before. `back` are counters that went back, `doubled` workers with two processes at
    a time, `left` processes that the fault should have taken with it and did not.
    """

    told_seconds: float | None = None
    well_seconds: float | None = None
    same_process: bool = True
    lost: int = 0
    answered: int = 0
    moved: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    error: str = ""


def judge(expected: Expected, observed: Observed) -> tuple[str, ...]:
    """Return all that is bad about what was seen; nothing if all is well."""
    bad: list[str] = []
    if observed.error:
        bad.append(f"could not be judged: {observed.error}")
    if observed.well_seconds is None:
        bad.append("a worker stays dead")
    elif observed.well_seconds > expected.well_seconds:
        bad.append(f"well after {observed.well_seconds:.1f} s only")
    if expected.told and observed.told_seconds is None:
        bad.append(f"never told: {expected.told}")
    elif observed.told_seconds is not None and observed.told_seconds > expected.told_seconds:
        bad.append(f"told after {observed.told_seconds:.1f} s only")
    if not expected.dies and not observed.same_process:
        bad.append("killed although it serves")
    if observed.lost:
        bad.append(f"{observed.lost} requests of untouched engines lost")
    bad += [f"untouched, but started anew: {name}" for name in observed.moved]
    back = [series for series in observed.back if not series.startswith(expected.resets)]
    if back:
        bad.append(f"{len(back)} counters went back, such as {back[0]}")
    bad += [f"two processes: {name}" for name in observed.doubled]
    bad += [f"left behind: {name}" for name in observed.left]
    return tuple(bad)


@dataclass(frozen=True, slots=True)
class Covered:
    """GPU-seconds over a stretch in which daemons were killed.

    `wall` is devices × seconds; `told` what the counters of phases and the unobserved seconds grew
    by, of which `unobserved`; `engines` and `phases` are seconds by phase, as the engines' own
    totals and the counters have grown.
    """

    wall: float
    told: float
    unobserved: float
    engines: Mapping[str, float]
    phases: Mapping[str, float]


def judge_coverage(
    covered: Covered, *, least: float = 0.995, phase_error: float = 0.02
) -> tuple[str, ...]:
    """Return what of the GPU-seconds is missing or wrong."""
    bad: list[str] = []
    share = covered.told / covered.wall if covered.wall else 0.0
    if not least <= share <= 1 + (1 - least):
        bad.append(f"{100 * share:.2f} % of GPU-seconds told")
    for phase, truth in covered.engines.items():
        told = covered.phases.get(phase, 0.0)
        if truth > 0 and abs(told / truth - 1) > phase_error:
            off = 100 * (told / truth - 1)
            bad.append(f"{phase}: {told:.2f} s told of {truth:.2f} s ({off:+.1f} %)")
    return tuple(bad)
