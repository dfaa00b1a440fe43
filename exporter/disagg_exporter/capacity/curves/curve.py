"""How long an engine's steps take by their size: what a limit is read off."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.capacity.curves.learned_limits import (
    MOST_CLASSES,
    SAMPLES_A_CLASS,
    LearnedClass,
    LearnedCurve,
)

CLASSES_A_DOUBLING = 4
FORGET_NS = 6 * 3600 * 1_000_000_000
_LAST_CLASS = MOST_CLASSES - 1
_MAD_TO_DEVIATION = 1.4826


class Point(NamedTuple):
    """Steps of about one size: the medians of size and seconds.

    `scatter` is the relative deviation of the seconds. `full` of the samples were as large as
    the engine's own limit let them be.
    """

    size: float
    seconds: float
    samples: int
    scatter: float = 0.0
    full: int = 0


class Sample(NamedTuple):
    """A step, or the mean of some equal ones."""

    size: float
    seconds: float
    full: bool = False


@dataclass(slots=True)
class _Class:
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_A_CLASS))
    latest_ns: int = 0
    point: Point | None = None


def class_of(size: float) -> int:
    """Return the number of the class that steps of a size (1 or more) are in."""
    return min(int(CLASSES_A_DOUBLING * math.log2(size)), _LAST_CLASS)


def classes_of(sizes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return `class_of` for several sizes."""
    classes: NDArray[np.float64] = CLASSES_A_DOUBLING * np.log2(sizes)
    return np.minimum(classes, _LAST_CLASS).astype(np.int64)


class Curve:
    """The latest steps of each size class; four classes to a doubling, 64 steps in each.

    Medians, because a graph capture or a hang is no property of a size. A class is forgotten six
    hours after its last step, and its older steps as newer ones come: sizes that are rare now
    keep what is known of them, and what is frequent follows clocks and contexts in minutes.
    """

    __slots__ = ("_classes",)

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}

    def add(self, size: float, seconds: float, now_ns: int, *, full: bool = False) -> None:
        """Take one step of `size` tokens or requests; one without either teaches nothing."""
        if size < 1 or seconds <= 0:
            return
        number = class_of(size)
        kept = self._classes.get(number)
        if kept is None:
            kept = self._classes[number] = _Class()
        kept.samples.append(Sample(size, seconds, full))
        kept.latest_ns = now_ns
        kept.point = None

    def save(self, now_ns: int) -> LearnedCurve:
        """Return all that is known, as plain values; what is forgotten by now is none of it."""
        return tuple(
            LearnedClass(number, max(now_ns - kept.latest_ns, 0), tuple(kept.samples))
            for number, kept in self._classes.items()
            if now_ns - kept.latest_ns <= FORGET_NS
        )

    def restore(self, saved: LearnedCurve, now_ns: int) -> None:
        """Go on with what was saved, instead of what is known."""
        self._classes = {}
        for each in saved:
            kept = self._classes[each.number] = _Class(latest_ns=now_ns - each.age_ns)
            kept.samples.extend(Sample._make(sample) for sample in each.samples)

    def points(self, now_ns: int) -> tuple[Point, ...]:
        """Return what is known, by size."""
        for number in [n for n, c in self._classes.items() if now_ns - c.latest_ns > FORGET_NS]:
            del self._classes[number]
        found = []
        for _, kept in sorted(self._classes.items()):
            if kept.point is None:
                kept.point = _point(kept.samples)
            found.append(kept.point)
        return tuple(found)


def _point(samples: deque[Sample]) -> Point:
    sizes, spent, full = zip(*samples, strict=True)
    seconds = median(spent)
    strays = median(abs(one - seconds) for one in spent)
    return Point(
        size=median(sizes),
        seconds=seconds,
        samples=len(samples),
        scatter=_MAD_TO_DEVIATION * strays / seconds,
        full=sum(full),
    )
