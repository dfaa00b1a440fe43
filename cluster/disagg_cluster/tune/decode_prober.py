"""Times decode steps of a chosen batch on a real engine: so many requests that write at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise

from disagg_cluster.tune.completion_server import ProbedEngine
from disagg_cluster.tune.completions import SmallVocabularyError, UniquePrompts
from disagg_cluster.tune.probed import SizeProbe
from disagg_cluster.tune.traffic_guard import LiveEngineError, refuse_company

STEPS = 24
"""So many steps of a batch are timed."""
_LEFT_OUT = 2
_LEAST_TIMED = 10
# A prompt may take so many tokens a step at least, or it is taken not to be let in.
_SLOW_PREFILL_TOKENS = 128
_PATIENCE_STEPS = 64
_SETTLE_SECONDS = 10.0
_LOOK_SECONDS = 0.1
DEADLINE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class CrowdedBatch:
    """The engine runs so many requests at once and no more: its limit, or what its cache holds."""

    most: int


@dataclass(slots=True)
class _Writing:
    """When each request of a batch got its tokens."""

    times: dict[int, list[float]] = field(default_factory=dict)
    latest: int = -1
    since_latest: int = 0

    def add(self, prompt: int, at_seconds: float) -> None:
        if prompt not in self.times:
            self.times[prompt] = []
            self.latest, self.since_latest = prompt, 0
        elif prompt == self.latest:
            self.since_latest += 1
        self.times[prompt].append(at_seconds)


@dataclass(slots=True)
class DecodeProber:
    """Lets a batch of requests write, times its steps while all of them do, and hangs up.

    Attributes:
        engine: Who is asked.
        prompts: Where they come from.
        most_tokens: The longest request that the engine takes; None where it does not tell.
        live: Whether it is probed though it serves others.
        deadline_seconds: For each batch.
        sleep: Between two looks at the page, by which alone an engine tells that what was
            aborted has left it: nothing there can be waited on.
    """

    engine: ProbedEngine
    prompts: UniquePrompts
    most_tokens: int | None = None
    live: bool = False
    deadline_seconds: float = DEADLINE_SECONDS
    sleep: Callable[[float], None] = time.sleep

    def probe(self, batch: int, context_tokens: int) -> SizeProbe | CrowdedBatch:
        """Time steps of a batch, from step to step.

        Raises:
            EngineRefusalError: It does not do that.
            EngineDownError: It does not answer, or not in time.
            LiveEngineError: Others use it by now.
        """
        self._settle()
        while True:
            try:
                return self._times(batch, context_tokens)
            except SmallVocabularyError:
                if not self.prompts.narrow():
                    raise

    def _times(self, batch: int, context_tokens: int) -> SizeProbe | CrowdedBatch:
        prompts = [self.prompts.of(context_tokens) for _ in range(batch)]
        patience = _PATIENCE_STEPS + math.ceil(context_tokens / _SLOW_PREFILL_TOKENS)
        stagger = math.ceil(batch * context_tokens / _SLOW_PREFILL_TOKENS)
        most = STEPS + _LEFT_OUT + 1 + patience + stagger
        if self.most_tokens is not None:
            most = min(most, max(self.most_tokens - context_tokens, 1))
        writing = _Writing()
        tokens = self.engine.complete(prompts, most, self.deadline_seconds)
        with closing(tokens):
            for token in tokens:
                writing.add(token.prompt, token.at_seconds)
                whole = len(writing.times) == batch
                if whole and writing.since_latest >= STEPS + _LEFT_OUT:
                    break
                if not whole and writing.since_latest >= patience:
                    return CrowdedBatch(len(writing.times))
        return _timed(writing, batch, most)

    def _settle(self) -> None:
        """Wait until what was aborted last has left the engine."""
        waited_seconds = 0.0
        while not self.live:
            page = self.engine.page()
            try:
                refuse_company(page)
            except LiveEngineError:
                if waited_seconds >= _SETTLE_SECONDS:
                    raise
            else:
                return
            self.sleep(_LOOK_SECONDS)
            waited_seconds += _LOOK_SECONDS


def _timed(writing: _Writing, batch: int, most: int) -> SizeProbe | CrowdedBatch:
    """The steps of the request that began last, as long as all others wrote, too."""
    if len(writing.times) < batch:
        return CrowdedBatch(max(len(writing.times), 1))
    ended = [times[-1] for times in writing.times.values() if len(times) >= most]
    until_seconds = min(ended, default=math.inf)
    times = [at for at in writing.times[writing.latest] if at <= until_seconds][_LEFT_OUT:]
    seconds = [later - earlier for earlier, later in pairwise(times)]
    if len(seconds) < _LEAST_TIMED:
        began = [times[0] for times in writing.times.values()]
        return CrowdedBatch(max(sum(at <= until_seconds for at in began) - 1, 1))
    return SizeProbe(batch, tuple(max(each, 1e-9) for each in seconds))
