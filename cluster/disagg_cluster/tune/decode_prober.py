"""Times decode steps of a given batch on a real engine, with concurrent requests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise

from disagg_cluster.tune.completion_server import ProbedEngine
from disagg_cluster.tune.completions import SmallVocabularyError, UniquePrompts, WrittenToken
from disagg_cluster.tune.probed import SizeProbe
from disagg_cluster.tune.traffic_guard import LiveEngineError, refuse_others
from disagg_exporter.model import EnginePage

STEPS = 24
"""Number of steps of a batch to time."""
_LEFT_OUT = 2
_LEAST_TIMED = 10
# A prompt is expected to get at least this many tokens per step, or else it counts as not admitted.
_SLOW_PREFILL_TOKENS = 128
_PATIENCE_STEPS = 64
_SETTLE_SECONDS = 10.0
_POLL_SECONDS = 0.1
DEADLINE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class CrowdedBatch:
    """The engine runs only this many requests at once, by its limit or its cache size.

    `is_cut`: it may run more, but requests ended before that many generated at once. They are as
    long as the engine accepts, or it ends them by itself.
    """

    most: int
    is_cut: bool = False


@dataclass(slots=True)
class _TokenTimes:
    """Arrival times of the tokens of each request of a batch.

    `since` counts the tokens of each since the latest request began, `most_since` those of the one
    that got most.
    """

    times: dict[int, list[float]] = field(default_factory=dict)
    latest: int = -1
    since: dict[int, int] = field(default_factory=dict)
    most_since: int = 0
    first_end_seconds: float = math.inf

    @property
    def since_latest(self) -> int:
        """How many tokens the latest request got after its first."""
        return self.since.get(self.latest, 0)

    @property
    def kept(self) -> int:
        """How many requests were not preempted for long since the latest began."""
        return sum(2 * count >= self.most_since for count in self.since.values())

    def add(self, token: WrittenToken) -> None:
        number = token.prompt
        if number not in self.times:
            self.times[number] = []
            self.latest, self.since, self.most_since = number, {}, 0
        else:
            self.since[number] = self.since.get(number, 0) + 1
            self.most_since = max(self.most_since, self.since[number])
        self.times[number].append(token.at_seconds)
        if token.is_last:
            self.first_end_seconds = min(self.first_end_seconds, token.at_seconds)


@dataclass(slots=True)
class DecodeProber:
    """Runs a batch of requests, times steps while all of them generate, and cancels them.

    Attributes:
        engine: The engine.
        prompts: The source of prompts.
        most_tokens: The longest request that the engine accepts; None if unknown.
        live: Whether it is probed while it serves users.
        deadline_seconds: Time limit per batch.
        sleep: Waits between polls of the page, the only way to see that aborted requests have left
            the engine.
        others: Requests of others that ran before the first batch; None while not known.
        ranks: Data-parallel ranks that divide each batch, by the engine's page.
    """

    engine: ProbedEngine
    prompts: UniquePrompts
    most_tokens: int | None = None
    live: bool = False
    deadline_seconds: float = DEADLINE_SECONDS
    sleep: Callable[[float], None] = time.sleep
    others: int | None = None
    ranks: int = 1

    def probe(self, batch: int, context_tokens: int) -> SizeProbe | CrowdedBatch:
        """Time the steps of a batch.

        Raises:
            EngineRefusalError: It rejects the requests.
            EngineDownError: It does not answer, or not in time.
            LiveEngineError: Others have begun to use it.
        """
        if self.live:
            self._see_others()
        else:
            self._wait_until_idle()
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
        writing = _TokenTimes()
        tokens = self.engine.complete(prompts, most, self.deadline_seconds)
        with closing(tokens):
            for token in tokens:
                writing.add(token)
                whole = len(writing.times) == batch
                if whole and writing.since_latest >= STEPS + _LEFT_OUT:
                    break
                if not whole and writing.since_latest >= patience:
                    return CrowdedBatch(len(writing.times))
                # A cache that is full preempts the latest, over and over, for as long as the
                # others run; users would wait all the while.
                if writing.most_since >= 2 * patience:
                    return CrowdedBatch(writing.kept)
        return _timed(writing, batch)

    def _see_others(self) -> None:
        page = self._page()
        # Later, some of ours may not have been aborted yet.
        if self.others is None and page is not None and page.running is not None:
            self.others = round(page.running)

    def _page(self) -> EnginePage | None:
        page = self.engine.page()
        self.ranks = 1 if page is None else page.ranks
        return page

    def _wait_until_idle(self) -> None:
        """Wait until previously aborted requests have left the engine."""
        waited_seconds = 0.0
        while True:
            page = self._page()
            try:
                refuse_others(page)
            except LiveEngineError:
                if waited_seconds >= _SETTLE_SECONDS:
                    raise
            else:
                return
            self.sleep(_POLL_SECONDS)
            waited_seconds += _POLL_SECONDS


def _timed(writing: _TokenTimes, batch: int) -> SizeProbe | CrowdedBatch:
    """The steps of the request that started last, while all others generated tokens as well."""
    if len(writing.times) < batch:
        return CrowdedBatch(max(len(writing.times), 1))
    until_seconds = writing.first_end_seconds
    times = [at for at in writing.times[writing.latest] if at <= until_seconds][_LEFT_OUT:]
    seconds = [later - earlier for earlier, later in pairwise(times)]
    if len(seconds) < _LEAST_TIMED:
        began = [times[0] for times in writing.times.values()]
        most = max(sum(at <= until_seconds for at in began) - 1, 1)
        return CrowdedBatch(most, is_cut=True)
    return SizeProbe(batch, tuple(max(each, 1e-9) for each in seconds))
