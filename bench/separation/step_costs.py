"""Step costs of measured mixed deployments: kernel tables, corrected by what was measured.

A token of a mixed deployment takes TPOT = R + A + S: what a step takes whatever the contexts, what
attention adds with them, and X TPOT p for the X prompts a second that hold up all who write, each
for p. Tables of kernels say R, A and p. By how much each is off is learned as a Gaussian process
from the mixed rows of one model, GPU, precision and backend:

    log TPOT = software + log(R e^r + A e^a + S e^p) + noise

where r, a and p have a part that all workers share and one of each way to divide the model over
GPUs, and r one that changes with the batch; `software` is of each version of the backend. So a
worker that was measured is known well near the batches that it had, one that was not hardly better
than the tables are, and prompts as well as rows with long prompts tell them apart from decode.

The posterior is Laplace's: Gauss and Newton's steps to the likeliest, the process linear there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from bench.separation.deployments import Deployment, Parallel
from bench.separation.kernel_tables import KernelSteps
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ITERATIONS = 8


class Spread(NamedTuple):
    """Standard deviations of logarithms of measured over tabled times, before a row is seen.

    `batch` changes over so many `doublings` of it.
    """

    step: float
    step_of_worker: float
    batch: float
    doublings: float
    attention: float
    attention_of_worker: float
    prompt: float
    prompt_of_worker: float
    software: float
    noise: float


# The likeliest (evidence) for the groups of mixed rows in the same file that are not of DeepSeek.
SPREAD = Spread(0.3, 0.02, 0.15, 3.0, 1.5, 0.7, 0.3, 0.02, 0.05, 0.1)


class Estimate(NamedTuple):
    """Seconds, and one standard deviation of their logarithm."""

    seconds: float
    error: float


class _Asked(NamedTuple):
    """One thing that may be off: of which part, worker, batch or software."""

    part: str
    parallel: Parallel | None = None
    batch: float = 1.0
    version: str = ""


@dataclass(frozen=True, slots=True)
class _Row:
    """One mixed row as the tables see it; parts of its TPOT as they say."""

    asked: tuple[_Asked, _Asked, _Asked, _Asked]
    step_seconds: float
    attention_seconds: float
    prompts_seconds: float
    tpot_seconds: float


class LearnedSteps:
    """What steps of all workers of one model, GPU, precision and backend take.

    Args:
        steps: By the tables, of each way to divide the model.
        rows: Mixed deployments; what is told is of their newest version.
        spread: What may be off before a row is seen.
    """

    def __init__(
        self,
        steps: dict[Parallel, KernelSteps],
        rows: Iterable[Deployment],
        spread: Spread = SPREAD,
    ) -> None:
        self.steps = steps
        self._spread = spread
        known = [row for row in rows if row.parallel in steps]
        self._version = max((row.version for row in known), key=_age, default="")
        self._rows = [_row(steps[row.parallel], row) for row in known]
        self._held: dict[Parallel, float] = {}
        for row in known:
            tokens = _written(row) * (row.kind.prompt_tokens + row.kind.output_tokens / 2)
            # A worker that ran at all holds a request.
            held = max(tokens, row.kind.prompt_tokens + row.kind.output_tokens)
            self._held[row.parallel] = max(held, self._held.get(row.parallel, 0.0))
        self._asked = [asked for row in self._rows for asked in row.asked]
        self._learn()

    def decode(self, parallel: Parallel, batch: float, context_tokens: float) -> Estimate:
        """A step in which a worker has so many requests that write."""
        steady, attention = _decode_parts(self.steps[parallel], batch, context_tokens)
        asked = [
            _Asked("step", parallel, batch),
            _Asked("attention", parallel),
            _Asked("software", version=self._version),
        ]
        off, covariance = self._told(asked)
        parts = np.array([steady * math.exp(off[0]), attention * math.exp(off[1])])
        slopes = np.append(parts / parts.sum(), 1.0)
        error = math.sqrt(max(0.0, float(slopes @ covariance @ slopes)))
        return Estimate(float(parts.sum()) * math.exp(off[2]), error)

    def prompt(self, parallel: Parallel, prompt_tokens: int) -> Estimate:
        """A prompt on a worker that computes nothing else."""
        asked = [_Asked("prompt", parallel), _Asked("software", version=self._version)]
        off, covariance = self._told(asked)
        tabled = self.steps[parallel].prompt_seconds(prompt_tokens)
        error = math.sqrt(max(0.0, float(covariance.sum())))
        return Estimate(tabled * math.exp(float(off.sum())), error)

    def room_tokens(self, parallel: Parallel) -> float:
        """How many tokens the caches of a worker hold: by the tables, or more if more were seen."""
        kv_tokens = self.steps[parallel].kv_tokens
        return math.inf if kv_tokens is None else max(kv_tokens, self._held.get(parallel, 0.0))

    @property
    def evidence(self) -> float:
        """The logarithm of the likelihood of all rows, by Laplace's approximation."""
        if not self._rows:
            return 0.0
        _, logarithm = np.linalg.slogdet(self._seen)
        off = self._residuals
        return -0.5 * (float(off @ np.linalg.solve(self._seen, off)) + float(logarithm))

    def _learn(self) -> None:
        """Find what is likeliest off in each row, and how the rows tell of anything else."""
        count = len(self._rows)
        prior = self._covariance(self._asked, self._asked)
        measured = np.log([row.tpot_seconds for row in self._rows])
        off = np.zeros(4 * count)
        noise = self._spread.noise**2 * np.eye(count)
        self._slopes = np.zeros((count, 4 * count))
        self._seen, self._residuals = noise, measured
        for _ in range(_ITERATIONS if count else 0):
            foreseen = np.zeros(count)
            for number, row in enumerate(self._rows):
                place = slice(4 * number, 4 * number + 4)
                foreseen[number], self._slopes[number, place] = _foreseen(row, off[place])
            self._residuals = measured - foreseen + self._slopes @ off
            self._seen = self._slopes @ prior @ self._slopes.T + noise
            off = prior @ self._slopes.T @ np.linalg.solve(self._seen, self._residuals)

    def _told(self, asked: Sequence[_Asked]) -> tuple[Floats, Floats]:
        """What these are off by, and the covariance of what is left unknown."""
        prior = self._covariance(asked, asked)
        if not self._rows:
            return np.zeros(len(asked)), prior
        shared = self._covariance(asked, self._asked) @ self._slopes.T
        told = np.linalg.solve(self._seen, np.column_stack([self._residuals, shared.T]))
        return shared @ told[:, 0], prior - shared @ told[:, 1:]

    def _covariance(self, some: Sequence[_Asked], others: Sequence[_Asked]) -> Floats:
        return np.array([[_shared(self._spread, one, other) for other in others] for one in some])


def _foreseen(row: _Row, off: Floats) -> tuple[float, Floats]:
    """The logarithm of the TPOT if the tables are off by these, and its slopes by each of them."""
    tabled = np.array([row.step_seconds, row.attention_seconds, row.prompts_seconds])
    parts = tabled * np.exp(off[:3])
    return math.log(parts.sum()) + off[3], np.append(parts / parts.sum(), 1.0)


def _shared(spread: Spread, one: _Asked, other: _Asked) -> float:
    """The covariance of what two things are off by."""
    if one.part != other.part:
        return 0.0
    if one.part == "software":
        return spread.software**2 if one.version == other.version else 0.0
    same = one.parallel == other.parallel
    if one.part == "attention":
        return spread.attention**2 + same * spread.attention_of_worker**2
    if one.part == "prompt":
        return spread.prompt**2 + same * spread.prompt_of_worker**2
    if not same:
        return spread.step**2
    apart = math.log2(one.batch / other.batch) / spread.doublings
    near = math.exp(-(apart**2) / 2)
    return spread.step**2 + spread.step_of_worker**2 + spread.batch**2 * near


def _written(row: Deployment) -> float:
    """How many requests write at a time (Little 1961)."""
    return max(1.0, row.requests_per_second * row.kind.output_tokens * row.tpot_seconds)


def _row(steps: KernelSteps, row: Deployment) -> _Row:
    batch = _written(row)
    context = row.kind.prompt_tokens + row.kind.output_tokens / 2
    steady, attention = _decode_parts(steps, batch, context)
    prompts = row.requests_per_second * steps.prompt_seconds(row.kind.prompt_tokens)
    return _Row(
        asked=(
            _Asked("step", row.parallel, batch),
            _Asked("attention", row.parallel),
            _Asked("prompt", row.parallel),
            _Asked("software", version=row.version),
        ),
        step_seconds=steady,
        attention_seconds=attention,
        prompts_seconds=prompts * row.tpot_seconds,
        tpot_seconds=row.tpot_seconds,
    )


def _decode_parts(steps: KernelSteps, batch: float, context: float) -> tuple[float, float]:
    """What the tables say of a step with contexts of one token, and what longer ones add."""
    steady = steps.decode_seconds(batch, 1)
    return steady, max(0.0, steps.decode_seconds(batch, context) - steady)


def _age(version: str) -> list[int]:
    """Versions in their order; one that is not told is the oldest."""
    return [int(part) for part in version.replace("post", "").split(".") if part.isdigit()]
