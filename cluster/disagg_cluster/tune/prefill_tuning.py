"""Searches for the prefill knee of an engine by prompt length, and derives settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from disagg_cluster.tune.knee_search import KneeEstimate, KneeSearch, knee_estimate
from disagg_cluster.tune.prefill_prober import PrefillProber, StepShape, TimeSource, step_shape
from disagg_cluster.tune.probed import SizeProbe, TimedSteps, size_grid
from disagg_exporter.capacity.curves.curve import Point

SMALLEST_STEP = 16
"""No measured engine processes smaller steps faster than this."""
_ROUND_TO = 64


@dataclass(frozen=True, slots=True)
class LengthTuning:
    """Results for prompts of one length.

    `most_probes` is the limit of its search, `complete` whether it has ended.
    """

    prompt_tokens: int
    probed: TimedSteps = field(default_factory=TimedSteps)
    most_probes: int = 0
    complete: bool = False

    @property
    def estimate(self) -> KneeEstimate | None:
        """The current estimate of the knee."""
        return knee_estimate(self.probed.points)

    @property
    def points(self) -> tuple[Point, ...]:
        """The curve: step seconds by tokens of the step."""
        return self.probed.points

    def step_seconds(self, size: float) -> float | None:
        """Duration of a step of `size` tokens within the timed range; otherwise None."""
        points = self.points
        if not points or not points[0].size <= size <= points[-1].size:
            return None
        return interpolated(points, size)


def interpolated(points: Sequence[Point], size: float) -> float:
    """Return the interpolated seconds of a size between two timed ones."""
    low = max((p for p in points if p.size <= size), key=lambda p: p.size)
    high = min((p for p in points if p.size >= size), key=lambda p: p.size)
    if low.size == high.size:
        return low.seconds
    part = (size - low.size) / (high.size - low.size)
    return low.seconds + part * (high.seconds - low.seconds)


@dataclass(frozen=True, slots=True)
class PrefillTuning:
    """Results for all lengths, and the recommended setting.

    `none_whole`: no step computed two prompts, however small.
    """

    lengths: tuple[LengthTuning, ...]
    source: TimeSource | None = None
    none_whole: bool = False

    @property
    def max_num_batched_tokens(self) -> int | None:
        """The smallest step that saturates with every prompt length; None if none does."""
        knees = [length.estimate for length in self.lengths]
        known = [
            each.knee_tokens for each in knees if each and each.limit and each.limit.knee_tokens
        ]
        if not known or len(known) < len(knees):
            return None
        return math.ceil(max(known) / _ROUND_TO) * _ROUND_TO

    def concurrency(self, length: LengthTuning) -> int | None:
        """Number of prompts of a length that fill such a step."""
        tokens = self.max_num_batched_tokens
        return None if tokens is None else max(1, round(tokens / length.prompt_tokens))

    def ttft_seconds(self, length: LengthTuning) -> float | None:
        """Prefill time of a prompt when one full step of prompts arrives at once, without queueing.

        A prompt longer than a step takes as many steps as it fills, each as expensive as the first.
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
    """Searches for the knee of each length in turn; intermediate results are available.

    Args:
        prober: Times steps.
        prompt_tokens: The prompt lengths.
        largest_step: Largest step to time.
        most_prompt_tokens: The longest prompt that the engine accepts; None if unknown.
    """

    def __init__(
        self,
        prober: PrefillProber,
        prompt_tokens: Sequence[int],
        largest_step: int,
        most_prompt_tokens: int | None = None,
    ) -> None:
        self._prober = prober
        self._largest = largest_step
        self._most_prompt_tokens = most_prompt_tokens
        self._timed: dict[StepShape, SizeProbe] = {}
        self._none_whole = False
        self._lengths = [LengthTuning(tokens) for tokens in prompt_tokens]

    @property
    def found(self) -> PrefillTuning:
        """The results so far."""
        return PrefillTuning(tuple(self._lengths), self._prober.source, self._none_whole)

    def run(self, progress: Progress) -> PrefillTuning:
        """Search to the end; raises as `PrefillProber.probe`."""
        self._largest = self._largest_whole()
        self._prober.notice_overlap(self._halves(self._largest))
        for place in range(len(self._lengths)):
            self._search(place, progress)
        return self.found

    def _largest_whole(self) -> int:
        """The largest grid step that the engine runs: two prompts in it finish together.

        A single prompt does not show this: one too long for a step is split into several, and no
        page reports that.
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
        self._none_whole = low == 0 and not self._is_whole(grid[0])
        return grid[low]

    def _is_whole(self, size: int) -> bool:
        return self._prober.is_whole(self._halves(size))

    def _halves(self, size: int) -> StepShape:
        return step_shape(size, max(size // 2, 1), self._most_prompt_tokens)

    def _search(self, place: int, progress: Progress) -> None:
        grid = size_grid(min(SMALLEST_STEP, self._largest), self._largest)
        most = max(len(grid) // 2, 1)
        self._lengths[place] = replace(self._lengths[place], most_probes=most)
        while (size := KneeSearch(grid, most).next_size(self._lengths[place].probed)) is not None:
            length = self._lengths[place]
            found = self._probe(size, length)
            if found is None:
                # Other requests took part in each of its steps, or it is never computed whole.
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
        # Scaled to the requested size, so that the search recognizes it.
        part = size / shape.size
        return SizeProbe(size, tuple(seconds * part for seconds in found.seconds))
