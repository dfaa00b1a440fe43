"""Reads Prometheus ranges as arrays, in parts, several of them concurrently."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np

from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.prometheus.prometheus_api import NoAnswerError, PrometheusError, Samples

STEPS_A_PART = 1440
IN_FLIGHT = 4
"""Most concurrent queries to a server."""
_LEAST_STEPS_A_QUERY = 15
_MOST = 1e15
"""Upper limit of rates as in files, so that their sums and squares stay finite."""

Found = dict[tuple[str, ...], Floats]
"""Values of all steps by the values of the kept labels; NaN where there is none."""


class RangeQueries(Protocol):
    """Interface of the Prometheus client, which several threads call."""

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
    """An expression evaluated at the ends of a request's steps: each, or each `stride`-th."""

    name: str
    expr: str
    first: int
    count: int
    stride: int = 1


def spans(steps: int) -> Iterator[tuple[int, int]]:
    """Yield the first step and the number of steps of each part of a range."""
    for first in range(0, steps, STEPS_A_PART):
        yield first, min(STEPS_A_PART, steps - first)


@dataclass(slots=True)
class RangeReader:
    """Reads parts of one request; halves the range of queries that are rejected as too large.

    Values that no rate has, such as negative or infinite ones, are left out.

    Args:
        prometheus: The client.
        request: The range and its steps.
        labels: Labels that distinguish series; others are ignored.
        deadline_seconds: Time limit of each answer.
        read_seconds: Time limit of all reads, from construction on.
        say: Called with a line of progress.
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
        """Read all parts; return the values by part name.

        Raises:
            PrometheusError: No answer in time, or an error other than a size limit.
        """
        found: dict[str, Found] = {part.name: {} for part in parts}
        waiting: SimpleQueue[tuple[RangePart, Future[None]]] = SimpleQueue()
        pending: list[Future[None]] = []
        for part in parts:
            pending.append(Future())
            waiting.put((part, pending[-1]))
        # An interrupted command does not wait for queries in flight, as daemon threads do not
        # outlive it.
        threads = [
            threading.Thread(target=self._read_all, args=(waiting, found), daemon=True)
            for _ in range(min(IN_FLIGHT, len(parts)))
        ]
        for thread in threads:
            thread.start()
        try:
            for done, future in enumerate(as_completed(pending)):
                self.say(f"reading {what}: {done * 100 // len(parts)} %")
                future.result()
        except BaseException as error:
            self._given_up = True
            if not isinstance(error, Exception):
                raise
            for thread in threads:
                thread.join()
            raise
        return found

    def _read_all(
        self,
        waiting: SimpleQueue[tuple[RangePart, Future[None]]],
        found: Mapping[str, Found],
    ) -> None:
        """Read parts until none waits."""
        while True:
            try:
                part, done = waiting.get_nowait()
            except Empty:
                return
            try:
                self._read(part, found[part.name])
            except BaseException as error:  # noqa: BLE001 # raised again by whoever waits
                done.set_exception(error)
            else:
                done.set_result(None)

    def _read(self, part: RangePart, found: Found) -> None:
        try:
            self._keep(part, found)
        except PrometheusError:
            self._given_up = True  # skip the parts that still wait
            raise

    def _keep(self, part: RangePart, found: Found) -> None:
        request = self.request
        for each in self._query(part, part.first, part.count):
            labels = tuple(each.labels.get(label, "") for label in self.labels)
            with self._lock:
                values = found.setdefault(labels, np.full(request.steps, np.nan))
            if each.values:
                times, loads = np.asarray(each.values, dtype=np.float64).T
                # The value at the end of a step belongs to that step.
                at = np.round((times - request.first_seconds) / request.step_seconds) - 1
                inside = (at >= 0) & (at < request.steps) & (loads >= 0) & (loads <= _MOST)
                values[at[inside].astype(np.int64)] = loads[inside]

    def _query(self, part: RangePart, first: int, count: int) -> Iterator[Samples]:
        if self._given_up:
            return
        most = self._most_steps.get(part.name, STEPS_A_PART * part.stride)
        if count > most:
            for start in range(first, first + count, most):
                yield from self._query(part, start, min(most, first + count - start))
            return
        step_seconds = self.request.step_seconds
        begin = self.request.first_seconds + (first + 1) * step_seconds
        end = self.request.first_seconds + (first + count) * step_seconds
        left_seconds = self._end_seconds - time.monotonic()
        if left_seconds <= 0:
            raise NoAnswerError(
                f"history was not read within {self.read_seconds:g} s: ask for a shorter range, "
                "longer steps or one cluster, and record it (disagg-recording-history.yaml)"
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
            if half < _LEAST_STEPS_A_QUERY or not error.is_too_much:
                raise
            self._most_steps[part.name] = min(half, most)
            yield from self._query(part, first, count)
