"""The knee of prefill of one engine, by prompt length: searched for, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from disagg_cluster.tune.knee_search import KneeEstimate, KneeSearch, knee_estimate
from disagg_cluster.tune.prefill_prober import PrefillProber, StepShape, TimeSource, step_shape
from disagg_cluster.tune.probed import SizeProbe, TimedSteps, size_grid
from disagg_exporter.capacity.curves.curve import Point

SMALLEST_STEP = 16
"""Smaller steps are read no faster than this by any engine that was measured."""
_ROUND_TO = 64


@dataclass(frozen=True, slots=True)
class LengthTuning:
    """What is known of prompts of one length.

    `most_probes` is the most that its search may take, `complete` whether it has ended.
    """

    prompt_tokens: int
    probed: TimedSteps = field(default_factory=TimedSteps)
    most_probes: int = 0
    complete: bool = False

    @property
    def estimate(self) -> KneeEstimate | None:
        """The knee as it is known by now."""
        return knee_estimate(self.probed.points)

    @property
    def points(self) -> tuple[Point, ...]:
        """The curve: step seconds by tokens of the step."""
        return self.probed.points

    def step_seconds(self, size: float) -> float | None:
        """What a step of so many tokens takes, within what was timed; else None."""
        points = self.points
        if not points or not points[0].size <= size <= points[-1].size:
            return None
        return interpolated(points, size)


def interpolated(points: Sequence[Point], size: float) -> float:
    """Return the seconds of a size between two that were timed."""
    low = max((p for p in points if p.size <= size), key=lambda p: p.size)
    high = min((p for p in points if p.size >= size), key=lambda p: p.size)
    if low.size == high.size:
        return low.seconds
    part = (size - low.size) / (high.size - low.size)
    return low.seconds + part * (high.seconds - low.seconds)


@dataclass(frozen=True, slots=True)
class PrefillTuning:
    """All lengths, and what to set."""

    lengths: tuple[LengthTuning, ...]
    source: TimeSource | None = None

    @property
    def max_num_batched_tokens(self) -> int | None:
        """The smallest step that saturates with prompts of every length; None where none does."""
        knees = [length.estimate for length in self.lengths]
        known = [
            each.knee_tokens for each in knees if each and each.limit and each.limit.knee_tokens
        ]
        if not known or len(known) < len(knees):
            return None
        return math.ceil(max(known) / _ROUND_TO) * _ROUND_TO

    def concurrency(self, length: LengthTuning) -> int | None:
        """How many prompts of a length fill such a step."""
        tokens = self.max_num_batched_tokens
        return None if tokens is None else max(1, round(tokens / length.prompt_tokens))

    def ttft_seconds(self, length: LengthTuning) -> float | None:
        """How long a prompt is computed when as many as fill a step come at once, queue aside.

        A prompt longer than a step takes as many steps as it fills, each as dear as the first.
        """
        tokens = self.max_num_batched_tokens
        if tokens is None:
            return None
        step_seconds = length.step_seconds(tokens)
        if step_seconds is None:
            return None
        return step_seconds * max(1.0, length.prompt_tokens / tokens)


Progress = Callable[[LengthTuning], None]


class PrefillTuner:
    """Searches for the knee of one length after the other; what it has learned can be had any time.

    Args:
        prober: Times steps.
        prompt_tokens: The lengths.
        largest_step: Larger steps are not timed.
        most_prompt_tokens: The longest prompt that the engine takes; None where it does not tell.
        most_probes: Of each length; None for half of all sizes.
    """

    def __init__(
        self,
        prober: PrefillProber,
        prompt_tokens: Sequence[int],
        largest_step: int,
        most_prompt_tokens: int | None = None,
        most_probes: int | None = None,
    ) -> None:
        self._prober = prober
        self._largest = largest_step
        self._most_prompt_tokens = most_prompt_tokens
        self._most_probes = most_probes
        self._timed: dict[StepShape, SizeProbe] = {}
        self._lengths = [LengthTuning(tokens) for tokens in prompt_tokens]

    @property
    def found(self) -> PrefillTuning:
        """What is known by now."""
        return PrefillTuning(tuple(self._lengths), self._prober.source)

    def run(self, progress: Progress) -> PrefillTuning:
        """Search to the end; raises as `PrefillProber.probe`."""
        self._largest = self._largest_whole()
        for place in range(len(self._lengths)):
            self._search(place, progress)
        return self.found

    def _largest_whole(self) -> int:
        """The largest step of the grid that the engine takes: two prompts in it end together.

        A single prompt does not tell: what is too long for a step is computed in several, and no
        page says so.
        """
        grid = size_grid(min(SMALLEST_STEP, self._largest), self._largest)
        low, high = 0, len(grid) - 1
        if self._is_whole(grid[high]):
            return grid[high]
        while high - low > 1:
            middle = (low + high) // 2
            if self._is_whole(grid[middle]):
                low = middle
            else:
                high = middle
        return grid[low]

    def _is_whole(self, size: int) -> bool:
        half = step_shape(size, max(size // 2, 1), self._most_prompt_tokens)
        return self._prober.is_whole(half)

    def _search(self, place: int, progress: Progress) -> None:
        grid = size_grid(min(SMALLEST_STEP, self._largest), self._largest)
        most = self._most_probes or max(len(grid) // 2, 1)
        self._lengths[place] = replace(self._lengths[place], most_probes=most)
        while (size := KneeSearch(grid, most).next_size(self._lengths[place].probed)) is not None:
            length = self._lengths[place]
            found = self._probe(size, length)
            if found is None:
                # Others took part in each of its steps, or it does not come about whole.
                grid = tuple(each for each in grid if each != size)
                if not grid:
                    break
                continue
            self._lengths[place] = replace(length, probed=length.probed.plus(found))
            progress(self._lengths[place])
        self._lengths[place] = replace(self._lengths[place], complete=True)

    def _probe(self, size: int, length: LengthTuning) -> SizeProbe | None:
        shape = step_shape(size, length.prompt_tokens, self._most_prompt_tokens)
        again = size in length.probed.sizes
        found = None if again else self._timed.get(shape)
        if found is None:
            found = self._prober.probe(shape)
            if found is None:
                return None
            self._timed[shape] = found
        # Of the size that was meant, so that the search knows it again.
        part = size / shape.size
        return SizeProbe(size, tuple(seconds * part for seconds in found.seconds))
