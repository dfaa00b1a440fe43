"""Causes before the engines: waits of users that no engine observes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.diagnose.causes.router_queue import (
    LEAST_NOISE_SECONDS,
    PRIOR_BLOCKS,
    FrontWait,
    exported_queue_seconds,
    passing_queue,
    router_waits,
)
from disagg_cluster.planner.diagnose.causes.suspicion import ActionAdvice, Suspicion
from disagg_cluster.planner.diagnose.causes.waits import SUSPECTED_PART, least_cost_seconds
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_BEFORE, shift_of
from disagg_cluster.planner.diagnose.verdict.values import (
    Alternative,
    Cause,
    Evidence,
    RemedyKind,
)
from disagg_exporter.model import Role

_Z = 4.0
# A floor is independent of load and the same for every request; a queue in the router is neither.
_STEADY, _RISE = 0.1, 0.1
# A scrape between the two counts mixes values from before and after the onset in so many bins.
_MIXED_BINS = 2
# The wait has begun where it exceeds the noise of waits so many times.
_RAISED_Z = 4.0
# Where the router exports its queue, and that is short, so many times the variation is steady.
_EXPORTED_PATIENCE = 5.0
_LEAST_KNOWN = 2
# Strength of a wait too new to be judged: likely, but not sure.
_NEW_Z = 6.0
# Noise: at least so many values, a deviation within this part of their mean, and a von Neumann
# ratio from this on (2: independent, 0: equal neighbours).
_LEAST_FOR_NOISE, _MOST_NOISE, _LEAST_VON_NEUMANN = 6, 0.2, 1.2
# What a scrape adds to one bin is missing in the next (a ratio of 3 by itself), unlike a queue.
_ALTERNATING = 2.4
# Network hops and tokenizers take this long.
_LEAST_SECONDS = 0.02
# An exported queue explains a wait if it accounts for this part of it (Little 1961).
_QUEUE_SHARE = 0.4


def front_suspicions(view: ModelView) -> Iterator[Suspicion]:
    """Causes of waits before an engine has the request, or between two engines."""
    router = router_waits(view)
    if router is None or not np.isfinite(router[-2:]).any():
        return
    found = _standing_wait(router) or passing_queue(view, router)
    if found is None:
        return
    least_seconds = SUSPECTED_PART * least_cost_seconds(view, found.usual)
    if found.seconds < max(least_seconds, _LEAST_SECONDS):
        return
    is_floor = _is_floor(view, found) if found.is_floor is None else found.is_floor
    is_new, strength = is_floor is None, found.z
    if is_floor is None:
        # It takes a second round.
        is_floor = _looks_like_a_floor(view, found)
        strength = min(found.z, _NEW_Z)
    whole = np.zeros(len(view.engines))
    whole[view.entries] = found.seconds
    now = found.usual + found.seconds
    text = (
        f"{now:.2f} s pass before an engine has a request, at any load"
        if is_floor
        else f"requests wait {now:.2f} s at the router, before they reach an engine"
    )
    yield Suspicion(
        Cause.LATENCY_FLOOR if is_floor else Cause.ROUTER_LIMIT,
        Role.PREFILL if len(view.decoders) else Role.MIXED,
        view.entries,
        True,
        whole,
        strength,
        found.since,
        (Evidence("router_seconds", now, found.usual, "s", text),),
        ActionAdvice(RemedyKind.NONE),
        None if found.is_sure else _other_of_both(view, is_floor=is_floor, is_new=is_new),
    )


def _other_of_both(view: ModelView, *, is_floor: bool, is_new: bool) -> Alternative | None:
    """The other of a floor and a queue, if the wait is new or no queue length is exported."""
    other = Cause.ROUTER_LIMIT if is_floor else Cause.LATENCY_FLOOR
    if is_new:
        return Alternative(other, "it has only just begun: a queue changes, a floor stays as it is")
    if exported_queue_seconds(view) is not None:
        return None
    return Alternative(other, "no metric shows how many requests wait before the engines")


def _standing_wait(router: Floats) -> FrontWait | None:
    """A wait before the engines that has lasted since its onset."""
    since, usual, z = _risen(router)
    known = router[since:][np.isfinite(router[since:])]
    if len(known) < 2 or z < _Z:
        return None
    return FrontWait(since, usual, float(np.mean(known[-4:])) - usual, z)


def _is_floor(view: ModelView, wait: FrontWait) -> bool | None:
    """Whether a wait is the same for every request, so no queue; None while unknown.

    An exported queue is judged by Little's law (1961). Otherwise a queue grows, or comes and goes.
    """
    since, cost_seconds = wait.since, wait.seconds
    queue_seconds = exported_queue_seconds(view)
    if queue_seconds is not None and queue_seconds >= _QUEUE_SHARE * cost_seconds:
        return False
    fine = router_waits(view, 1)
    assert fine is not None
    # The first block may begin before the onset.
    blocks = view.blocks("arrivals", view.entries).shape[1]
    begin = max(len(fine) - (blocks - since - 1) * view.block_bins, 0)
    before = _known(fine[: max(begin - view.block_bins - _MIXED_BINS, 0)])
    # A difference of two waits has noise of its own.
    noise = float(np.std(before)) if since >= LEAST_BEFORE and len(before) >= LEAST_BEFORE else 0.0
    least_seconds = max(_RAISED_Z * noise, LEAST_NOISE_SECONDS)
    begun = _first_raised(fine, begin, wait.usual + least_seconds)
    known = _known(fine[min(begun + _MIXED_BINS, begin) :])
    if len(known) < _LEAST_KNOWN * view.block_bins:
        return None
    return _is_steady(known, noise, 1.0 if queue_seconds is None else _EXPORTED_PATIENCE)


def _first_raised(fine: Floats, begin: int, least_seconds: float) -> int:
    """The bin since which all bins up to `begin` have at least this wait.

    A floor starts at once: more values in between than a scrape may mix mean a growing queue.
    """
    lower = np.flatnonzero(~(fine[:begin] >= least_seconds))
    return int(lower[-1]) + 1 if len(lower) else 0


def _known(values: Floats) -> Floats:
    return np.asarray(values[np.isfinite(values)])


def _looks_like_a_floor(view: ModelView, wait: FrontWait) -> bool:
    """Whether a wait too new to be judged is likelier a floor than a queue.

    An exported queue that does not explain it is evidence for a floor, and so are steady bins.
    """
    if exported_queue_seconds(view) is not None:
        return True
    fine = router_waits(view, 1)
    assert fine is not None
    blocks = view.blocks("arrivals", view.entries).shape[1]
    # The first block may begin before the onset.
    recent = fine[len(fine) - (blocks - wait.since - 1) * view.block_bins :]
    known = recent[np.isfinite(recent)]
    return len(known) >= _LEAST_KNOWN and _is_steady(known, 0.0, 1.0)


def _risen(router: Floats) -> tuple[int, float, float]:
    """The onset block of the present wait, the wait before, and the change in standard errors.

    In seconds, not logarithms: a difference of two waits may be around 0.
    """
    shift = shift_of(router[None])
    if shift.z[0] >= _Z:
        since, usual = int(shift.onset[0]), max(float(shift.before[0]), 0.0)
        # A wait below 0 is an artefact of scrapes at different times: a rise to 0 does not count.
        part = (float(shift.after[0]) - usual) / float(shift.change[0])
        z = float(shift.z[0]) * min(max(part, 0.0), 1.0)
        return since, usual, z
    known = router[np.isfinite(router)]
    if len(known) < LEAST_BEFORE:
        return 0, 0.0, 0.0
    # No change in the window: the wait is tested against 0.
    deviation = np.sqrt(
        (float(((known - known.mean()) ** 2).sum()) + PRIOR_BLOCKS * LEAST_NOISE_SECONDS**2)
        / (len(known) - 1 + PRIOR_BLOCKS)
    )
    error = float(deviation) / np.sqrt(len(known)) + 0.01 * abs(float(np.mean(known)))
    return 0, 0.0, float(np.median(known)) / max(error, 1e-6)


def _is_steady(known: Floats, noise: float, patience: float) -> bool:
    """Whether a wait is constant within its noise; `patience` scales the tolerances."""
    mean = float(np.mean(known))
    deviation = float(np.median(np.abs(known - np.median(known))))
    third = max(len(known) // 3, 1)
    # A queue grows; a difference of two waits may also fall a little.
    rise = float(np.mean(known[-third:]) - np.mean(known[:third]))
    noise = max(noise, _white_noise(known))
    error = noise * np.sqrt(2 / third)
    return bool(
        deviation <= patience * _STEADY * mean + noise
        and rise <= patience * _RISE * mean + error
        and rise >= -2 * patience * _RISE * mean - error
    )


def _white_noise(known: Floats) -> float:
    """Standard deviation of a wait if its values are independent and vary little; else 0.

    A queue is autocorrelated (von Neumann 1941: squared differences over the variance).
    """
    deviation = float(np.std(known))
    if len(known) < _LEAST_FOR_NOISE or not deviation > 0:
        return 0.0
    ratio = float(np.mean(np.diff(known) ** 2)) / deviation**2
    is_little = deviation <= _MOST_NOISE * float(np.mean(known))
    return deviation if ratio >= (_LEAST_VON_NEUMANN if is_little else _ALTERNATING) else 0.0
