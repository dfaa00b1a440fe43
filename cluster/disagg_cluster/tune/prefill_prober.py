"""Times prefill steps of a given size on a real engine, with several prompts in one step.

Prompts that arrive at an idle engine do not all enter its first step. If they did not, a prompt of
the same length is sent first: the others arrive during its step and form the next one together. The
duration is taken from the engine's page if it times prompts; otherwise by the client, from the
token of the first prompt, or from sending a single prompt.

An engine with async scheduling launches a step while the one before runs. Its users' steps seldom
wait for a launch, which on a GPU can take longer than computing a prompt of 700 tokens (31 ms for
20, on an H200); and on its page the time of such a step contains part of the one before. Every step
of such an engine is timed behind another, by the client.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median, pstdev

from disagg_cluster.tune.completion_server import ProbedEngine
from disagg_cluster.tune.completions import SmallVocabularyError, UniquePrompts, WrittenToken
from disagg_cluster.tune.probed import SizeProbe
from disagg_cluster.tune.traffic_guard import EngineCounters, counters_of, refuse_others

LEAST_SAMPLES = 5
"""With fewer steps, the exporter concludes nothing about a size."""
MOST_SAMPLES = 15
_SURE_ENOUGH = 0.01
_MEDIAN_FACTOR = 1.25
_MOST_TRIES = 30
_ALONE = 5
# On a busy host prompts often split over steps, and a size that was dropped is not retried.
_WHOLE_TRIES = 12
_POLLS = 10
_POLL_SECONDS = 0.02
# After this time, only the required minimum of steps is timed for a size.
_LONG_SECONDS = 10.0
_TOGETHER = 0.1
_TOGETHER_SECONDS = 0.003
_APART = 0.3
# Part of the step ahead by which a page's time exceeds the client's where it contains that step.
_OVERLAP = 0.5
# Steps behind another to see it by.
_OVERLAP_SAMPLES = 2
DEADLINE_SECONDS = 120.0


class TimeSource(StrEnum):
    """The clock that the times of steps come from."""

    PAGE = "page"
    CLIENT = "client"
    TOKENS = "tokens"
    """The client's, from the token of the step ahead."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """Prompts of equal length computed in one step."""

    prompts: int
    tokens: int

    @property
    def size(self) -> int:
        """Tokens of the step."""
        return self.prompts * self.tokens


def step_shape(size: int, prompt_tokens: int, most_prompt_tokens: int | None = None) -> StepShape:
    """Return prompts of about a length that form a step of about a size; one if it is smaller.

    In a larger step a prompt is two thirds to one and a half times as long as requested, and never
    longer than `most_prompt_tokens`.
    """
    prompts = max(1, round(size / prompt_tokens), math.ceil(size / (most_prompt_tokens or size)))
    return StepShape(prompts, max(1, size // prompts))


@dataclass(slots=True)
class PrefillProber:
    """Sends prompts and measures the duration of the step that computed them.

    Attributes:
        engine: The engine.
        prompts: The source of prompts.
        live: Whether it is probed while it serves users; disturbed steps are then left out.
        deadline_seconds: Time limit per answer.
        now: Test seam.
        sleep: Waits between polls of the page, the only way to see what the engine has counted.
        source: The clock of the latest times; None before the first.
    """

    engine: ProbedEngine
    prompts: UniquePrompts
    live: bool = False
    deadline_seconds: float = DEADLINE_SECONDS
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    source: TimeSource | None = None
    _ahead: bool = False
    _overlaps: bool = False
    _alone_seconds: dict[int, float] = field(default_factory=dict)

    def probe(self, shape: StepShape) -> SizeProbe | None:
        """Time steps of one shape until the median is stable; None if none was computed whole.

        Raises:
            EngineRefusalError: It rejects the requests.
            EngineDownError: It does not answer, or not in time.
            LiveEngineError: Others have begun to use it.
        """
        seconds: list[float] = []
        end_seconds = self.now() + _LONG_SECONDS
        # The first step of a size may include compilation.
        self._sample(shape)
        for tries in range(_MOST_TRIES):
            found = self._sample(shape)
            if found is not None:
                seconds.append(found)
            late = self.now() >= end_seconds and len(seconds) >= LEAST_SAMPLES
            if late or self._enough(seconds):
                break
            if not seconds and tries >= LEAST_SAMPLES:
                return None
        return SizeProbe(shape.size, tuple(seconds)) if len(seconds) >= LEAST_SAMPLES else None

    def is_whole(self, shape: StepShape) -> bool:
        """Return whether several prompts are computed in one step, so whether it can be as large.

        Raises:
            EngineRefusalError, EngineDownError, LiveEngineError: As `probe`.
        """
        return any(self._sample(shape) is not None for _ in range(_WHOLE_TRIES))

    def notice_overlap(self, shape: StepShape) -> None:
        """Find out whether the engine schedules a step while the one before runs.

        `shape` is of long steps: one that takes no longer than its launch overlaps with none.

        Raises:
            EngineRefusalError, EngineDownError, LiveEngineError: As `probe`.
        """
        before, self._ahead, found = self._ahead, True, 0
        for _ in range(_WHOLE_TRIES):
            found += self._sample(shape) is not None
            self._ahead = True
            if self._overlaps or found >= _OVERLAP_SAMPLES or self.source is TimeSource.CLIENT:
                break
        self._ahead = before

    @staticmethod
    def _enough(seconds: Sequence[float]) -> bool:
        if len(seconds) < LEAST_SAMPLES:
            return False
        error = _MEDIAN_FACTOR * pstdev(seconds) / len(seconds) ** 0.5
        return error <= _SURE_ENOUGH * median(seconds) or len(seconds) >= MOST_SAMPLES

    def _sample(self, shape: StepShape) -> float | None:
        """One step's seconds; None if the prompts were not alone in one step."""
        ahead = self._overlaps or (self._ahead and shape.prompts > 1)
        before = self._counters()
        by_page = before.reports_steps
        self.source = self._clock(by_page=by_page)
        if not by_page and before.ranks > 1 and shape.prompts > 1:
            # Each rank computes its part of them: their tokens come together, from several steps.
            return None
        begun_seconds = self.now()
        tokens = self._send(shape, ahead=ahead)
        by_client = _by_client(tokens, begun_seconds, shape, ahead=ahead)
        seconds = by_client
        if by_page:
            passed = self._passed(before, shape.prompts + ahead)
            # Only the client sees whether all came together, and after the prompt ahead.
            if seconds is not None:
                seconds = self._by_page(shape, passed, seconds, ahead=ahead)
        if seconds is None and shape.prompts > 1:
            # A slow engine admits all of them into the step of the prompt ahead.
            self._ahead = not self._ahead
        return seconds if seconds is not None and seconds > 0 else None

    def _clock(self, *, by_page: bool) -> TimeSource:
        if self._overlaps:
            return TimeSource.TOKENS
        return TimeSource.PAGE if by_page else TimeSource.CLIENT

    def _passed(self, before: EngineCounters, sent: int) -> EngineCounters:
        """Counters of the sent requests; they may be updated after the answers have arrived."""
        for _ in range(_POLLS):
            passed = self._counters().since(before)
            if (passed.first_token_requests or 0) >= sent:
                break
            self.sleep(_POLL_SECONDS)
        return passed

    def _by_page(
        self, shape: StepShape, passed: EngineCounters, client_seconds: float, *, ahead: bool
    ) -> float | None:
        if passed.first_token_requests != shape.prompts + ahead or passed.steps != 1 + ahead:
            return None
        of_ours = passed.first_token_seconds or 0.0
        if not ahead:
            return of_ours / shape.prompts
        if self._overlaps:
            return client_seconds
        of_ahead = self._alone(shape.tokens)
        if of_ahead is None:
            return None
        seconds = (of_ours - of_ahead) / shape.prompts
        # With async scheduling a step is scheduled, which begins its prompts' time, while the step
        # ahead still runs. From token to token the client sees the step by itself.
        self._overlaps = seconds - client_seconds > _OVERLAP * of_ahead
        return client_seconds if self._overlaps else seconds

    def _alone(self, tokens: int) -> float | None:
        """Duration of a step with only the prompt ahead, from the engine's page.

        None if others took part in each such step, which is tried again with the next sample.
        """
        if tokens not in self._alone_seconds:
            found = [self._sample(StepShape(1, tokens)) for _ in range(_ALONE + 1)]
            known = [each for each in found[1:] if each is not None]
            if not known:
                return None
            self._alone_seconds[tokens] = median(known)
        return self._alone_seconds[tokens]

    def _send(self, shape: StepShape, *, ahead: bool) -> list[WrittenToken]:
        while True:
            prompts = [self.prompts.of(shape.tokens) for _ in range(shape.prompts + ahead)]
            try:
                return list(self.engine.complete(prompts, 1, self.deadline_seconds))
            except SmallVocabularyError:
                if not self.prompts.narrow():
                    raise

    def _counters(self) -> EngineCounters:
        page = self.engine.page()
        if not self.live:
            refuse_others(page)
        return counters_of(page)


def _by_client(
    tokens: Sequence[WrittenToken], begun_seconds: float, shape: StepShape, *, ahead: bool
) -> float | None:
    """Time from the prompt ahead, if any, to the other prompts' tokens, which arrive together."""
    if len(tokens) != shape.prompts + ahead or (ahead and tokens[0].prompt != 0):
        return None
    others = tokens[1:] if ahead else tokens
    since_seconds = tokens[0].at_seconds if ahead else begun_seconds
    seconds = others[-1].at_seconds - since_seconds
    spread_seconds = others[-1].at_seconds - others[0].at_seconds
    together = spread_seconds <= max(_TOGETHER * seconds, _TOGETHER_SECONDS)
    # A prompt ahead whose token arrived with the others was in their step.
    apart = not ahead or seconds >= _APART * (since_seconds - begun_seconds)
    return seconds if together and apart else None
