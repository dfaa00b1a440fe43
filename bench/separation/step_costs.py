"""Step costs of measured mixed deployments: kernel tables, corrected by the measurements.

A token of a mixed deployment takes TPOT = R + A + S: a step's time regardless of contexts, the
attention over them, and X TPOT p for the X prompts a second that hold up all decoding requests,
each for p. Kernel tables give R, A and p. The error of each is learned as a Gaussian process
from the mixed rows of one model, GPU, precision and backend:

    log TPOT = software + log(R e^r + A e^a + S e^p) + noise

where r, a and p have a part shared by all workers and one for each way to divide the model over
GPUs, and r one that changes with the batch; `software` belongs to a version of the backend. So a
measured worker is known well near its batches, another one hardly better than by the tables, and
prompts as well as rows with long prompts distinguish them from decode.

The posterior is Laplace's: Gauss-Newton steps to the mode, the process linearized there.
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
    """Prior standard deviations of the logarithms of measured over tabled times.

    `batch` has a correlation length of `doublings` doublings of the batch.
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


# Of maximum evidence for the groups of mixed rows in the same file, except DeepSeek's.
SPREAD = Spread(0.3, 0.02, 0.15, 3.0, 1.5, 0.7, 0.3, 0.02, 0.05, 0.1)


class Estimate(NamedTuple):
    """Seconds, and one standard deviation of their logarithm."""

    seconds: float
    error: float


class _Error(NamedTuple):
    """One unknown error: the part, worker, batch or software that it is of."""

    part: str
    parallel: Parallel | None = None
    batch: float = 1.0
    version: str = ""


@dataclass(frozen=True, slots=True)
class _Row:
    """One mixed row, with the parts of its TPOT by the tables."""

    errors: tuple[_Error, _Error, _Error, _Error]
    step_seconds: float
    attention_seconds: float
    prompts_seconds: float
    tpot_seconds: float


class LearnedSteps:
    """The step times of all workers of one model, GPU, precision and backend.

    Args:
        steps: Steps by the tables, for each way to divide the model.
        rows: Mixed deployments; estimates are for their newest version.
        spread: The prior spread of the errors.
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
            # A worker that ran holds at least one request.
            held = max(tokens, row.kind.prompt_tokens + row.kind.output_tokens)
            self._held[row.parallel] = max(held, self._held.get(row.parallel, 0.0))
        self._errors = [error for row in self._rows for error in row.errors]
        self._learn()

    def decode(self, parallel: Parallel, batch: float, context_tokens: float) -> Estimate:
        """Estimate a decode step of a worker."""
        steady, attention = _decode_parts(self.steps[parallel], batch, context_tokens)
        errors = [
            _Error("step", parallel, batch),
            _Error("attention", parallel),
            _Error("software", version=self._version),
        ]
        off, covariance = self._posterior(errors)
        parts = np.array([steady * math.exp(off[0]), attention * math.exp(off[1])])
        slopes = np.append(parts / parts.sum(), 1.0)
        error = math.sqrt(max(0.0, float(slopes @ covariance @ slopes)))
        return Estimate(float(parts.sum()) * math.exp(off[2]), error)

    def prompt(self, parallel: Parallel, prompt_tokens: int) -> Estimate:
        """Estimate a prompt on a worker that computes nothing else."""
        errors = [_Error("prompt", parallel), _Error("software", version=self._version)]
        off, covariance = self._posterior(errors)
        tabled = self.steps[parallel].prompt_seconds(prompt_tokens)
        error = math.sqrt(max(0.0, float(covariance.sum())))
        return Estimate(tabled * math.exp(float(off.sum())), error)

    def room_tokens(self, parallel: Parallel) -> float:
        """Return the tokens that a worker's caches hold, by the tables or, if more, by the rows."""
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
        """Find the most likely errors of the rows, and how they inform others."""
        count = len(self._rows)
        prior = self._covariance(self._errors, self._errors)
        measured = np.log([row.tpot_seconds for row in self._rows])
        off = np.zeros(4 * count)
        noise = self._spread.noise**2 * np.eye(count)
        self._slopes = np.zeros((count, 4 * count))
        self._seen, self._residuals = noise, measured
        for _ in range(_ITERATIONS if count else 0):
            predicted = np.zeros(count)
            for number, row in enumerate(self._rows):
                place = slice(4 * number, 4 * number + 4)
                predicted[number], self._slopes[number, place] = _predicted(row, off[place])
            self._residuals = measured - predicted + self._slopes @ off
            self._seen = self._slopes @ prior @ self._slopes.T + noise
            off = prior @ self._slopes.T @ np.linalg.solve(self._seen, self._residuals)

    def _posterior(self, errors: Sequence[_Error]) -> tuple[Floats, Floats]:
        """Return the posterior mean and covariance of errors."""
        prior = self._covariance(errors, errors)
        if not self._rows:
            return np.zeros(len(errors)), prior
        shared = self._covariance(errors, self._errors) @ self._slopes.T
        solved = np.linalg.solve(self._seen, np.column_stack([self._residuals, shared.T]))
        return shared @ solved[:, 0], prior - shared @ solved[:, 1:]

    def _covariance(self, some: Sequence[_Error], others: Sequence[_Error]) -> Floats:
        return np.array([[_shared(self._spread, one, other) for other in others] for one in some])


def _predicted(row: _Row, off: Floats) -> tuple[float, Floats]:
    """Return the logarithm of the TPOT for errors of the tables, and its slope by each."""
    tabled = np.array([row.step_seconds, row.attention_seconds, row.prompts_seconds])
    parts = tabled * np.exp(off[:3])
    return math.log(parts.sum()) + off[3], np.append(parts / parts.sum(), 1.0)


def _shared(spread: Spread, one: _Error, other: _Error) -> float:
    """Return the prior covariance of two errors."""
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
    """Return how many requests decode at a time (Little 1961)."""
    return max(1.0, row.requests_per_second * row.kind.output_tokens * row.tpot_seconds)


def _row(steps: KernelSteps, row: Deployment) -> _Row:
    batch = _written(row)
    context = row.kind.prompt_tokens + row.kind.output_tokens / 2
    steady, attention = _decode_parts(steps, batch, context)
    prompts = row.requests_per_second * steps.prompt_seconds(row.kind.prompt_tokens)
    return _Row(
        errors=(
            _Error("step", row.parallel, batch),
            _Error("attention", row.parallel),
            _Error("prompt", row.parallel),
            _Error("software", version=row.version),
        ),
        step_seconds=steady,
        attention_seconds=attention,
        prompts_seconds=prompts * row.tpot_seconds,
        tpot_seconds=row.tpot_seconds,
    )


def _decode_parts(steps: KernelSteps, batch: float, context: float) -> tuple[float, float]:
    """Return a step's time by the tables with contexts of one token, and what longer ones add."""
    steady = steps.decode_seconds(batch, 1)
    return steady, max(0.0, steps.decode_seconds(batch, context) - steady)


def _age(version: str) -> list[int]:
    """Return a key that orders versions; an unknown one is the oldest."""
    return [int(part) for part in version.replace("post", "").split(".") if part.isdigit()]
