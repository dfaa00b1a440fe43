"""The work of an engine's steps, samples of it by size, and a speed factor."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import floor, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.attribution.cost_model.learned_costs import MOST_CELLS, LearnedCell
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.steps.rows import NOT_REPORTED, Rows, unfinished_tokens

_MEMORY_SECONDS = 40.0
_LIMIT = 4.0


class SpeedFactor:
    """A factor common to all steps: clocks, throttling, a neighbour on the same GPU.

    Brown's double exponential smoothing (R. G. Brown, Smoothing, Forecasting and Prediction of
    Discrete Time Series, 1963): unlike a plain mean, it follows a steady drift without a lag, which
    would bias the learned costs.
    """

    __slots__ = ("_mean", "_mean_of_means")

    def __init__(self) -> None:
        self._mean = self._mean_of_means = 1.0

    @property
    def ratio(self) -> float:
        """The present duration of a step over its known cost."""
        ratio = 2 * self._mean - self._mean_of_means
        return max(min(ratio, _LIMIT), 1 / _LIMIT)

    def save(self) -> tuple[float, float]:
        """Return the mean and the mean of means."""
        return self._mean, self._mean_of_means

    def restore(self, saved: tuple[float, float]) -> None:
        """Continue with saved values."""
        self._mean, self._mean_of_means = saved

    def follow(self, ratio: float, seconds: float) -> None:
        """Follow one step, given its length over its known cost, and its length."""
        part = seconds / (seconds + _MEMORY_SECONDS)
        self._mean += part * (ratio - self._mean)
        self._mean_of_means += part * (self._mean - self._mean_of_means)


class StepWork(NamedTuple):
    """The features of a step's cost.

    `prefill_attended` is Σ over prefill tokens of the tokens each attends to. `decode_kv` is the
    cache that decode reads, in any one unit (tokens, or a share of the cache).
    """

    prefill_tokens: float = 0.0
    prefill_attended: float = 0.0
    decode_requests: float = 0.0
    decode_kv: float = 0.0


class Proxies:
    """Reads a vLLM engine's records in order, and estimates what they do not contain.

    A record has counts of requests and tokens, and the share of the cache in use. Not in it are

    * the length of a chunk's context. Estimate: the tokens computed so far of prompts that have not
      ended, tracked from record to record, plus the cached tokens of those that end in this step.
      Chunks in one step are assumed equally long; a cached prefix is known only at the end. A step
      that only decodes ends all tracking, as no prompt is under way. So prompts that were aborted
      or preempted, which never end, are not tracked for ever.
    * the cache that decode reads. Estimate: the share of the cache in use when the step began
      (including prompts still being computed). The cache's size is unknown but not needed: a
      coefficient includes it. If an engine reports the tokens read (FPM), these are used.

    docs/benchmarks.md has the resulting error.
    """

    __slots__ = ("_kv_usage_ratio", "_unfinished_tokens")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget the progress of prompts: records are missing, or the process has changed."""
        self._unfinished_tokens = 0.0
        self._kv_usage_ratio: float | None = None

    def read(self, rows: Rows, kinds: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the work of the next records' steps, a `StepWork` in each row.

        `kinds` are those of `wire.step_kind`.
        """
        decodes, tokens = kinds == wire.GENERATION, rows["context_tokens"]
        before = self._follow(rows, decodes)
        usage = rows["kv_usage_ratio"]
        known = usage[:1] if self._kv_usage_ratio is None else [self._kv_usage_ratio]
        reported = rows["decode_kv_tokens"]
        read = np.where(reported == NOT_REPORTED, np.concatenate((known, usage[:-1])), reported)
        self._kv_usage_ratio = float(usage[-1])
        chunk = tokens / np.maximum(rows["context_requests"], 1)
        attended = chunk * (before + rows["cached_tokens"]) + tokens * (chunk + 1) / 2
        # Requests with transferred KV decode their first token like any other (accounting A4).
        decoding = rows["generation_requests"] + decodes * rows["context_requests"]
        columns = tokens * ~decodes, attended * ~decodes, decoding, read * (decoding > 0)
        return np.stack(columns, axis=1)

    def pass_over(self, rows: Rows, kinds: NDArray[np.int64]) -> None:
        """Track the next records without returning their work."""
        self._kv_usage_ratio = float(rows["kv_usage_ratio"][-1])
        if kinds[-1] == wire.GENERATION:
            self._unfinished_tokens = 0.0  # regardless of what it was
        else:
            self._follow(rows, kinds == wire.GENERATION)

    def _follow(self, rows: Rows, decodes: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the unfinished prompts' tokens before each record."""
        grown, known = rows["context_tokens"] - rows["computed_tokens"], self._unfinished_tokens
        left = unfinished_tokens(grown, decodes, known)
        self._unfinished_tokens = float(left[-1])
        return np.concatenate(([known], left[:-1]))


# Bins per doubling. Tokens decide where computing takes longer than reading, so they have the
# narrowest bins. Within a cell only means are kept, which is exact while costs are linear.
_TOKEN_BINS, _KV_BINS, _ATTENDED_BINS = 8, 2, 1
_HEAVY = 1e6
# Relative to a present step. A lighter cell has no influence, and would fade to a weight of 0.
_LEAST_WEIGHT = 1e-9
_WEIGHT, _SECONDS = 0, 5


class SampleBins:
    """Samples of an engine's steps: weighted means over steps of about the same work.

    A step n steps ago weighs e^(−n / memory_steps), and finally nothing. Beyond 1200 kinds of work
    the lighter half is dropped; each takes about 300 bytes.
    """

    __slots__ = ("_cells", "_grown", "_now")

    def __init__(self, memory_steps: int) -> None:
        self._cells: dict[tuple[int, int, int], array[float]] = {}
        # Instead of old steps fading, new ones weigh more.
        self._grown = 1 + 1 / memory_steps
        self._now = 1.0

    def add(self, work: StepWork, seconds: float, weight: float, steps: int = 1) -> None:
        """Add a step, or one that stands for several."""
        prefill, attended, decode, decode_kv = work
        key = (
            floor(_TOKEN_BINS * log2(prefill + decode)),
            floor(_KV_BINS * log2(decode_kv)) if decode_kv > 0 else -9999,
            floor(_ATTENDED_BINS * log2(attended)) if attended > 0 else -9999,
        )
        cell = self._cells.get(key)
        if cell is None:
            if len(self._cells) >= MOST_CELLS:
                self._forget()
            cell = self._cells[key] = array("d", bytes(48))
        weight *= self._now * steps
        self._now *= self._grown**steps
        cell[_WEIGHT] += weight
        cell[1] += weight * prefill
        cell[2] += weight * attended
        cell[3] += weight * decode
        cell[4] += weight * decode_kv
        cell[_SECONDS] += weight * seconds
        if self._now > _HEAVY:
            self._lighten()

    def __len__(self) -> int:
        return len(self._cells)

    def means(self) -> list[tuple[float, StepWork, float]]:
        """Return the weight, the mean work and the mean seconds of every cell."""
        found = []
        for cell in self._cells.values():
            weight, *sums, seconds = cell
            work = StepWork(*[number / weight for number in sums])
            found.append((weight / self._now, work, seconds / weight))
        return found

    def save(self) -> tuple[float, tuple[LearnedCell, ...]]:
        """Return the weight of a present step, and all cells."""
        return self._now, tuple((*key, *_sums(cell)) for key, cell in self._cells.items())

    def restore(self, now: float, cells: Iterable[LearnedCell]) -> None:
        """Replace the cells by saved ones."""
        self._now = now
        self._cells = {cell[:3]: array("d", cell[3:]) for cell in cells}

    def _lighten(self) -> None:
        lightest = _LEAST_WEIGHT * self._now
        self._cells = {
            key: array("d", [number / self._now for number in cell])
            for key, cell in self._cells.items()
            if cell[_WEIGHT] > lightest
        }
        self._now = 1.0

    def _forget(self) -> None:
        cells = self._cells
        heaviest = sorted(cells, key=lambda key: cells[key][_WEIGHT], reverse=True)
        self._cells = {key: cells[key] for key in heaviest[: MOST_CELLS // 2]}


def _sums(cell: array[float]) -> tuple[float, float, float, float, float, float]:
    weight, prefill, attended, decode, decode_kv, seconds = cell
    return weight, prefill, attended, decode, decode_kv, seconds
