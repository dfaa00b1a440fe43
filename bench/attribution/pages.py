"""An engine of which only its metrics page and the activity of its devices are known."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from bench.attribution.engines import Seen

from disagg_exporter.attribution.pages.page_windows import PageWindows
from disagg_exporter.engine_pages.histograms import BETWEEN_TOKENS_BOUNDS_SECONDS
from disagg_exporter.model import SECOND_NS, EnginePage, Histogram, Method, Role, ServingCounts


class Stretch(NamedTuple):
    """Busy time between two reads of a page: the estimated and the true part of prefill."""

    busy_seconds: float
    share: float
    true_seconds: float


class Pages:
    """The accounting's own rule for pages, read once a second, even during a step.

    The devices' activity is assumed to equal the engine's step time, so this is the error of the
    rule alone. The page reports what vLLM's does: a prompt's tokens when its last piece is
    computed, and no step that wrote no token. `step_tokens` is the engine's limit, where its
    command line states one.
    """

    def __init__(self, step_tokens: int | None = None) -> None:
        self._step_tokens = step_tokens
        self._stretches = PageWindows(lambda start_ns, end_ns: self._busy_seconds)
        self._next_ns: int | None = None
        self._computed_tokens = self._written_tokens = self._first_tokens = self._steps = 0
        self._gaps = [0] * (len(BETWEEN_TOKENS_BOUNDS_SECONDS) + 1)
        self._running = 0
        self._busy_seconds = self._true_seconds = 0.0

    def ingest(self, seen: Seen) -> Iterator[Stretch]:
        """Ingest a step; yield the stretches that ended before it did."""
        end_ns = seen.step.t_ns
        done_ns = end_ns - seen.step.elapsed_ns
        if self._next_ns is None:
            self._next_ns = done_ns
        while self._next_ns < end_ns:
            if self._next_ns > done_ns:
                self._work(self._next_ns - done_ns, seen.share)
                done_ns = self._next_ns
            window = self._stretches.ingest(
                self._page(self._next_ns),
                Role.MIXED,
                Method.PAGE,
                step_tokens=self._step_tokens,
            )
            if window is not None:
                yield Stretch(self._busy_seconds, window.prefill_share, self._true_seconds)
                # Time without a window so far counts towards the next one, if it was not idle.
                self._busy_seconds = self._true_seconds = 0.0
            self._next_ns += SECOND_NS
        self._work(end_ns - done_ns, seen.share)
        self._count(seen)

    def _work(self, length_ns: int, share: float) -> None:
        self._busy_seconds += length_ns / SECOND_NS
        self._true_seconds += length_ns / SECOND_NS * share

    def _count(self, seen: Seen) -> None:
        written = seen.first_tokens + sum(seen.gaps_ns.values())
        self._computed_tokens += seen.step.computed_tokens
        self._first_tokens += seen.first_tokens
        self._written_tokens += written
        self._steps += written > 0
        self._running = seen.step.running
        for gap_ns, times in seen.gaps_ns.items():
            self._gaps[bisect_left(BETWEEN_TOKENS_BOUNDS_SECONDS, gap_ns / SECOND_NS)] += times

    def _page(self, t_ns: int) -> EnginePage:
        gaps = tuple(map(float, accumulate(self._gaps)))
        return EnginePage(
            "vllm",
            t_ns,
            running=self._running,
            computed_tokens_total=self._computed_tokens,
            generation_tokens_total=self._written_tokens,
            steps_total=self._steps,
            serving=ServingCounts(
                time_to_first_token=Histogram((), (float(self._first_tokens),), 0.0),
                inter_token_latency=Histogram(BETWEEN_TOKENS_BOUNDS_SECONDS, gaps, 0.0),
            ),
        )
