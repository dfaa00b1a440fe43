"""Step durations of an engine by step size, from which limits are read off."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.attribution.cost_model.learned_costs import (
    MOST_COUNT,
    MOST_SECONDS,
    check_range,
)
from disagg_exporter.model import SECOND_NS

SAMPLES_A_CLASS = 64
MOST_CLASSES = 97
MOST_RATES = 32
_MOST_AGE_NS = 10 * 366 * 86_400 * SECOND_NS

LearnedSample = tuple[float, float, bool]
"""A step's size and seconds, and whether it was as large as the engine's limit allowed."""


@dataclass(frozen=True, slots=True)
class LearnedClass:
    """The latest steps of one size class; `age_ns` is the time since the last of them.

    Raises:
        ValueError: The values are not valid for a class.
    """

    number: int
    age_ns: int
    samples: tuple[LearnedSample, ...]

    def __post_init__(self) -> None:
        """Check what types cannot express."""
        if not 1 <= len(self.samples) <= SAMPLES_A_CLASS:
            raise ValueError(f"{len(self.samples)} samples, expected 1 to {SAMPLES_A_CLASS}")
        sizes, seconds, _ = zip(*self.samples, strict=True)
        check_range("number", (self.number,), 0, MOST_CLASSES - 1)
        check_range("age_ns", (self.age_ns,), 0, _MOST_AGE_NS)
        check_range("size", sizes, 1, MOST_COUNT)
        check_range("seconds", seconds, 1e-12, MOST_SECONDS)

    def lighter(self) -> LearnedClass:
        """Return it with the later half of its samples, at least one."""
        return replace(self, samples=self.samples[len(self.samples) // 2 :])


LearnedCurve = tuple[LearnedClass, ...]


@dataclass(frozen=True, slots=True)
class LearnedLimits:
    """What the limits of one engine are read off: by steps, and by its page.

    `gap_seconds` is the host's time from step to step, `page_rates` the prefill tokens per second
    observed while requests waited.

    Raises:
        ValueError: The values are not valid limits.
    """

    prefill: LearnedCurve = ()
    decode: LearnedCurve = ()
    gap_seconds: float = 0.0
    page_decode: LearnedCurve = ()
    page_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check what types cannot express."""
        for curve in (self.prefill, self.decode, self.page_decode):
            if len({each.number for each in curve}) < len(curve):
                raise ValueError("a size class stands there twice")
        check_range("gap_seconds", (self.gap_seconds,), 0, MOST_SECONDS)
        check_range("page_rates", self.page_rates, 0, MOST_COUNT)
        if len(self.page_rates) > MOST_RATES:
            raise ValueError(f"{len(self.page_rates)} page_rates, expected at most {MOST_RATES}")

    @property
    def samples(self) -> int:
        """Number of samples of step times and rates."""
        curves = (*self.prefill, *self.decode, *self.page_decode)
        return sum(len(each.samples) for each in curves) + len(self.page_rates)

    def lighter(self) -> LearnedLimits:
        """Return it with about half of its samples, the later ones of each class."""
        return self._each(LearnedClass.lighter)

    def older(self, age_ns: int) -> LearnedLimits:
        """Return it with all ages increased by `age_ns`."""
        return self._each(partial(_older, age_ns=age_ns))

    def _each(self, change: Callable[[LearnedClass], LearnedClass]) -> LearnedLimits:
        return replace(
            self,
            prefill=tuple(map(change, self.prefill)),
            decode=tuple(map(change, self.decode)),
            page_decode=tuple(map(change, self.page_decode)),
        )


def _older(known: LearnedClass, age_ns: int) -> LearnedClass:
    return replace(known, age_ns=min(known.age_ns + age_ns, _MOST_AGE_NS))


CLASSES_A_DOUBLING = 4
FORGET_NS = 6 * 3600 * SECOND_NS
_LAST_CLASS = MOST_CLASSES - 1
MAD_TO_DEVIATION = 1.4826
"""A median absolute deviation of normal values, as their standard deviation."""


class Point(NamedTuple):
    """Steps of about one size: the medians of size and seconds.

    `scatter` is the relative deviation of the seconds. `full` of the samples were as large as the
    engine's own limit allowed.
    """

    size: float
    seconds: float
    samples: int
    scatter: float = 0.0
    full: int = 0


class StepSample(NamedTuple):
    """A step, or the mean of several similar ones."""

    size: float
    seconds: float
    full: bool = False


@dataclass(slots=True)
class _Class:
    samples: deque[StepSample] = field(default_factory=lambda: deque(maxlen=SAMPLES_A_CLASS))
    latest_ns: int = 0
    point: Point | None = None


def class_of(size: float) -> int:
    """Return the number of the class of steps of this size (1 or more)."""
    return min(int(CLASSES_A_DOUBLING * math.log2(size)), _LAST_CLASS)


def classes_of(sizes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return `class_of` for several sizes."""
    classes: NDArray[np.float64] = CLASSES_A_DOUBLING * np.log2(sizes)
    return np.minimum(classes, _LAST_CLASS).astype(np.int64)


class Curve:
    """The latest steps of each size class: four classes per doubling, 64 steps in each.

    Medians, because a graph capture or a hang is not a property of a size. A class is forgotten six
    hours after its last step, and its older steps as newer ones arrive: sizes that are rare now
    keep what is known of them, and frequent ones follow clocks and contexts within minutes.
    """

    __slots__ = ("_classes",)

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}

    def add(self, size: float, seconds: float, now_ns: int, *, full: bool = False) -> None:
        """Add one step of `size` tokens or requests; one of size 0 is ignored."""
        if size < 1 or seconds <= 0:
            return
        number = class_of(size)
        kept = self._classes.get(number)
        if kept is None:
            kept = self._classes[number] = _Class()
        kept.samples.append(StepSample(size, seconds, full))
        kept.latest_ns = now_ns
        kept.point = None

    def save(self, now_ns: int) -> LearnedCurve:
        """Return all that is known, as plain values, without classes that have expired."""
        return tuple(
            LearnedClass(number, max(now_ns - kept.latest_ns, 0), tuple(kept.samples))
            for number, kept in self._classes.items()
            if now_ns - kept.latest_ns <= FORGET_NS
        )

    def restore(self, saved: LearnedCurve, now_ns: int) -> None:
        """Replace what is known with what was saved."""
        self._classes = {}
        for each in saved:
            kept = self._classes[each.number] = _Class(latest_ns=now_ns - each.age_ns)
            kept.samples.extend(StepSample._make(sample) for sample in each.samples)

    def points(self, now_ns: int) -> tuple[Point, ...]:
        """Return the known points in order of size."""
        for number in [n for n, c in self._classes.items() if now_ns - c.latest_ns > FORGET_NS]:
            del self._classes[number]
        found = []
        for _, kept in sorted(self._classes.items()):
            if kept.point is None:
                kept.point = _point(kept.samples)
            found.append(kept.point)
        return tuple(found)


def _point(samples: deque[StepSample]) -> Point:
    sizes, spent, full = zip(*samples, strict=True)
    seconds = median(spent)
    deviation = median(abs(one - seconds) for one in spent)
    return Point(
        size=median(sizes),
        seconds=seconds,
        samples=len(samples),
        scatter=MAD_TO_DEVIATION * deviation / seconds,
        full=sum(full),
    )
