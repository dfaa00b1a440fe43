"""Ranges of a Prometheus as arrays, read in parts of which several are under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.prometheus.prometheus_api import NoAnswerError, PrometheusError, Samples

STEPS_A_PART = 1440
IN_FLIGHT = 4
"""How many queries a server is asked at a time, at most."""
_LEAST_STEPS_A_QUERY = 15
# How servers say that a query was too large or took too long, which a shorter one need not be.
_TOO_MUCH = (
    *("exceed", "too many", "too long", "limit", "larger than"),
    *("timed out", "timeout", "no whole answer"),
)

Found = dict[tuple[str, ...], Floats]
"""Values of all steps by the values of the labels that matter; NaN where there is none."""


class RangeQueries(Protocol):
    """What is needed of a client of Prometheus. Several threads ask."""

    def query_range(
        self,
        expr: str,
        start_seconds: float,
        end_seconds: float,
        step_seconds: float,
        deadline_seconds: float = 60.0,
    ) -> list[Samples]:
        """Evaluate an expression at each step."""


@dataclass(frozen=True, slots=True)
class RangePart:
    """An expression at the ends of some of a request's steps: each of them, or each `stride`-th."""

    name: str
    expr: str
    first: int
    count: int
    stride: int = 1


def spans(steps: int) -> Iterator[tuple[int, int]]:
    """The first step, and how many, of each part of a range."""
    for first in range(0, steps, STEPS_A_PART):
        yield first, min(STEPS_A_PART, steps - first)


@dataclass(slots=True)
class RangeReader:
    """Reads parts of one request. What is refused as too large is asked in halves, from then on.

    Args:
        prometheus: The client.
        request: The range and its steps.
        labels: Those by which series are kept; the others do not matter.
        deadline_seconds: For each answer.
        read_seconds: For all of them, from now on.
        say: Told what is being read.
    """

    prometheus: RangeQueries
    request: HistoryRequest
    labels: tuple[str, ...]
    deadline_seconds: float
    read_seconds: float
    say: Callable[[str], None]
    _end_seconds: float = field(init=False)
    _most_steps: dict[str, int] = field(init=False, default_factory=dict)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _given_up: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._end_seconds = time.monotonic() + self.read_seconds

    def read(self, parts: Sequence[RangePart], what: str) -> dict[str, Found]:
        """Read all parts; by their names what was found.

        Raises:
            PrometheusError: No answer in time, or a refusal that is not for size.
        """
        found: dict[str, Found] = {part.name: {} for part in parts}
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            asked = [pool.submit(self._read, part, found[part.name]) for part in parts]
            try:
                for done, future in enumerate(as_completed(asked)):
                    self.say(f"reading {what}: {done * 100 // len(parts)} %")
                    future.result()
            except BaseException:
                self._given_up = True
                raise
        return found

    def _read(self, part: RangePart, found: Found) -> None:
        try:
            self._keep(part, found)
        except PrometheusError:
            self._given_up = True  # what waits is not asked any more
            raise

    def _keep(self, part: RangePart, found: Found) -> None:
        request = self.request
        for each in self._asked(part, part.first, part.count):
            labels = tuple(each.labels.get(label, "") for label in self.labels)
            with self._lock:
                values = found.setdefault(labels, np.full(request.steps, np.nan))
            if each.values:
                times, loads = np.asarray(each.values, dtype=np.float64).T
                # A value at the end of a step is the step's.
                at = np.round((times - request.first_seconds) / request.step_seconds) - 1
                inside = (at >= 0) & (at < request.steps) & np.isfinite(loads)
                values[at[inside].astype(np.int64)] = loads[inside]

    def _asked(self, part: RangePart, first: int, count: int) -> Iterator[Samples]:
        if self._given_up:
            return
        most = self._most_steps.get(part.name, STEPS_A_PART * part.stride)
        if count > most:
            for start in range(first, first + count, most):
                yield from self._asked(part, start, min(most, first + count - start))
            return
        step_seconds = self.request.step_seconds
        begin = self.request.first_seconds + (first + 1) * step_seconds
        end = self.request.first_seconds + (first + count) * step_seconds
        left_seconds = self._end_seconds - time.monotonic()
        if left_seconds <= 0:
            raise NoAnswerError(
                f"the past was not read in {self.read_seconds:g} s: ask for a shorter one, for "
                "longer steps or for one cluster, and record it (disagg-recording-history.yaml)"
            )
        try:
            yield from self.prometheus.query_range(
                part.expr,
                begin,
                end,
                step_seconds * part.stride,
                min(self.deadline_seconds, left_seconds),
            )
        except PrometheusError as error:
            half = count // 2 // part.stride * part.stride
            if half < _LEAST_STEPS_A_QUERY or not any(told in str(error) for told in _TOO_MUCH):
                raise
            self._most_steps[part.name] = min(half, most)
            yield from self._asked(part, first, count)
