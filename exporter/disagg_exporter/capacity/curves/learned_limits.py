"""What is known of how long an engine's steps take by their size, as plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from disagg_exporter.attribution.cost_model.bounds import MOST_COUNT, MOST_SECONDS, check_range

SAMPLES_A_CLASS = 64
MOST_CLASSES = 97
MOST_RATES = 32
_MOST_AGE_NS = 10 * 366 * 86_400 * 1_000_000_000

LearnedSample = tuple[float, float, bool]
"""A step's size and seconds, and whether it was as large as the engine's limit let it be."""


@dataclass(frozen=True, slots=True)
class LearnedClass:
    """The latest steps of one size class, `age_ns` after the last of them.

    Raises:
        ValueError: The values are not those of such a class.
    """

    number: int
    age_ns: int
    samples: tuple[LearnedSample, ...]

    def __post_init__(self) -> None:
        """Check what no type can say."""
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

    `gap_seconds` is the host's time from step to step, `page_rates` the prefill tokens a second
    that were seen while requests waited.

    Raises:
        ValueError: The values are not those of such limits.
    """

    prefill: LearnedCurve = ()
    decode: LearnedCurve = ()
    gap_seconds: float = 0.0
    page_decode: LearnedCurve = ()
    page_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check what no type can say."""
        for curve in (self.prefill, self.decode, self.page_decode):
            if len({each.number for each in curve}) < len(curve):
                raise ValueError("a size class stands there twice")
        check_range("gap_seconds", (self.gap_seconds,), 0, MOST_SECONDS)
        check_range("page_rates", self.page_rates, 0, MOST_COUNT)
        if len(self.page_rates) > MOST_RATES:
            raise ValueError(f"{len(self.page_rates)} page_rates, expected at most {MOST_RATES}")

    @property
    def samples(self) -> int:
        """How many samples of step times and rates there are."""
        curves = (*self.prefill, *self.decode, *self.page_decode)
        return sum(len(each.samples) for each in curves) + len(self.page_rates)

    def lighter(self) -> LearnedLimits:
        """Return it with about half of its samples, of each class the later ones."""
        return self._each(LearnedClass.lighter)

    def older(self, age_ns: int) -> LearnedLimits:
        """Return it as it is so much later."""
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
