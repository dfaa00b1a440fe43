"""Times prefill steps of a chosen size on a real engine: so many prompts in one step.

Prompts that arrive at an engine at rest do not all get into its first step. So where they did not,
a prompt of as many tokens is sent ahead of them, in whose step the others arrive: the next step is
then all of theirs. How long it took is read off the engine's page, where that clocks prompts; else
by the client: from the token of the prompt ahead, or from the sending of a prompt alone.
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
from disagg_cluster.tune.traffic_guard import EngineCounters, counters_of, refuse_company

LEAST_SAMPLES = 5
"""Of fewer steps the product says nothing about a size."""
MOST_SAMPLES = 15
_SURE_ENOUGH = 0.01
_MEDIAN_FACTOR = 1.25
_MOST_TRIES = 30
_ALONE = 5
# On a busy host prompts often come apart, and a size that is given up is not asked for again.
_WHOLE_TRIES = 12
_LOOKS = 10
_LOOK_SECONDS = 0.02
# After so long no more is asked of a size than must be.
_LONG_SECONDS = 10.0
_TOGETHER = 0.1
_TOGETHER_SECONDS = 0.003
_APART = 0.3
DEADLINE_SECONDS = 120.0


class TimeSource(StrEnum):
    """Whose clock the times of steps are from."""

    PAGE = "page"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class StepShape:
    """Prompts of equal length that one step computes."""

    prompts: int
    tokens: int

    @property
    def size(self) -> int:
        """Tokens of the step."""
        return self.prompts * self.tokens


def step_shape(size: int, prompt_tokens: int, most_prompt_tokens: int | None = None) -> StepShape:
    """Return prompts of about a length that make a step of about a size; one where it is smaller.

    In a larger step a prompt is two thirds to one and a half times as long as asked for, and never
    longer than `most_prompt_tokens`.
    """
    prompts = max(1, round(size / prompt_tokens), math.ceil(size / (most_prompt_tokens or size)))
    return StepShape(prompts, max(1, size // prompts))


@dataclass(slots=True)
class PrefillProber:
    """Sends prompts and reads how long the step took that computed them.

    Attributes:
        engine: Who is asked.
        prompts: Where they come from.
        live: Whether it is probed though it serves others; then what they disturbed is left out.
        deadline_seconds: For each answer.
        now: Seam.
        sleep: Between two looks at the page, by which alone an engine tells what was
            counted: nothing there can be waited on.
        source: Whose clock the latest times are from; None before the first.
    """

    engine: ProbedEngine
    prompts: UniquePrompts
    live: bool = False
    deadline_seconds: float = DEADLINE_SECONDS
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    source: TimeSource | None = None
    _ahead: bool = False
    _alone_seconds: dict[int, float] = field(default_factory=dict)

    def probe(self, shape: StepShape) -> SizeProbe | None:
        """Time steps of one shape until the median is sure; None where none came about whole.

        Raises:
            EngineRefusalError: It does not do that.
            EngineDownError: It does not answer, or not in time.
            LiveEngineError: Others use it by now.
        """
        seconds: list[float] = []
        end_seconds = self.now() + _LONG_SECONDS
        # The first of a size may have to be compiled for.
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
        """Say whether several prompts come about in one step: whether a step may be as large.

        Raises:
            EngineRefusalError, EngineDownError, LiveEngineError: As `probe`.
        """
        return any(self._sample(shape) is not None for _ in range(_WHOLE_TRIES))

    @staticmethod
    def _enough(seconds: Sequence[float]) -> bool:
        if len(seconds) < LEAST_SAMPLES:
            return False
        error = _MEDIAN_FACTOR * pstdev(seconds) / len(seconds) ** 0.5
        return error <= _SURE_ENOUGH * median(seconds) or len(seconds) >= MOST_SAMPLES

    def _sample(self, shape: StepShape) -> float | None:
        """One step's seconds; None where the prompts were not alone in one step."""
        ahead = self._ahead and shape.prompts > 1
        before = self._counters()
        self.source = TimeSource.PAGE if before.tells_steps else TimeSource.CLIENT
        begun_seconds = self.now()
        tokens = self._send(shape, ahead=ahead)
        by_client = _by_client(tokens, begun_seconds, shape, ahead=ahead)
        seconds = by_client
        if self.source is TimeSource.PAGE:
            passed = self._passed(before, shape.prompts + ahead)
            by_page = self._by_page(shape, passed, ahead=ahead)
            # That all came together, and after the one ahead, only we can tell.
            seconds = None if by_client is None else by_page
        if seconds is None and shape.prompts > 1:
            # An engine that takes its time lets all of them into the step of the one ahead.
            self._ahead = not self._ahead
        return seconds if seconds is not None and seconds > 0 else None

    def _passed(self, before: EngineCounters, sent: int) -> EngineCounters:
        """What was counted of what was sent: answers may be there before they are counted."""
        for _ in range(_LOOKS):
            passed = self._counters().since(before)
            if (passed.first_token_requests or 0) >= sent:
                break
            self.sleep(_LOOK_SECONDS)
        return passed

    def _by_page(self, shape: StepShape, passed: EngineCounters, *, ahead: bool) -> float | None:
        if passed.first_token_requests != shape.prompts + ahead or passed.steps != 1 + ahead:
            return None
        of_ours = passed.first_token_seconds or 0.0
        if ahead:
            of_ours -= self._alone(shape.tokens)
        return of_ours / shape.prompts

    def _alone(self, tokens: int) -> float:
        """What the prompt that is sent ahead takes, alone in a step; by the engine's page."""
        if tokens not in self._alone_seconds:
            found = [self._sample(StepShape(1, tokens)) for _ in range(_ALONE + 1)]
            known = [each for each in found[1:] if each is not None]
            self._alone_seconds[tokens] = median(known) if known else 0.0
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
            refuse_company(page)
        return counters_of(page)


def _by_client(
    tokens: Sequence[WrittenToken], begun_seconds: float, shape: StepShape, *, ahead: bool
) -> float | None:
    """From the token of the prompt ahead, if any, to those of the others, which come together."""
    if len(tokens) != shape.prompts + ahead or (ahead and tokens[0].prompt != 0):
        return None
    others = tokens[1:] if ahead else tokens
    since_seconds = tokens[0].at_seconds if ahead else begun_seconds
    seconds = others[-1].at_seconds - since_seconds
    spread_seconds = others[-1].at_seconds - others[0].at_seconds
    together = spread_seconds <= max(_TOGETHER * seconds, _TOGETHER_SECONDS)
    # One that came with the others was in their step.
    apart = not ahead or seconds >= _APART * (since_seconds - begun_seconds)
    return seconds if together and apart else None
