"""Step costs of measured mixed deployments: kernel tables, corrected by what was measured.

A token of a mixed deployment that has c requests at a time takes TPOT = D(c) + X · TPOT · p, where
D is a decode step, X the requests it ends a second and p what a prompt takes: in each TPOT that
many prompts hold up all who write. So D(c) = TPOT (1 - X p). Tables of kernels say D and p; by how
much they are off is learned as a Gaussian process from the mixed rows of one model, GPU, precision
and backend: a part that all share, one of each way to divide the model over GPUs, one that changes
with batch and context, and noise. So a worker that was measured is known well near the batches that
it had, one that was not hardly better than the tables are.
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

# Standard deviations of the logarithm of measured over tabled times, and the doublings of batch or
# context over which they change: the likeliest (marginal likelihood, on a coarse grid) for 22 other
# groups of mixed rows in the same file, none of DeepSeek.
_SHARED, _OF_WORKER, _OF_PLACE, _NOISE = 0.3, 0.05, 0.2, 0.07
_DOUBLINGS = 2.0
_PROMPT_ERROR = 0.3
_PROMPT_FACTORS = np.exp(np.linspace(-0.9, 0.9, 25))


class Estimate(NamedTuple):
    """Seconds, and one standard deviation of their logarithm."""

    seconds: float
    error: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """One mixed row as the tables see it."""

    parallel: Parallel
    batch: float
    context_tokens: float
    tabled_seconds: float
    tpot_seconds: float
    prompts_share: float


class LearnedSteps:
    """What steps of all workers of one model, GPU, precision and backend take.

    Args:
        steps: By the tables, of each way to divide the model.
        rows: Mixed deployments.
    """

    def __init__(self, steps: dict[Parallel, KernelSteps], rows: Iterable[Deployment]) -> None:
        self.steps = steps
        self._seen = [_seen(steps[row.parallel], row) for row in rows if row.parallel in steps]
        self._prompt_log = self._prompt_deviation = 0.0
        self._learn_prompts()
        self._residuals = self._logs(math.exp(self._prompt_log))
        self._covariance = _covariance(self._seen) if self._seen else np.zeros((0, 0))

    def decode(self, parallel: Parallel, batch: float, context_tokens: float) -> Estimate:
        """A step in which a worker has so many requests that write."""
        tabled = self.steps[parallel].decode_seconds(batch, context_tokens)
        prior = _SHARED**2 + _OF_WORKER**2 + _OF_PLACE**2
        if not self._seen:
            return Estimate(tabled, math.sqrt(prior))
        place = (parallel, batch, context_tokens)
        near = np.array([_shared(place, seen) for seen in self._seen])
        weights = np.linalg.solve(self._covariance, near)
        left = max(prior - float(weights @ near), 0.0)
        return Estimate(tabled * math.exp(float(weights @ self._residuals)), math.sqrt(left))

    def prompt(self, parallel: Parallel, prompt_tokens: int) -> Estimate:
        """A prompt on a worker that computes nothing else."""
        tabled = self.steps[parallel].prompt_seconds(prompt_tokens)
        error = math.hypot(self._prompt_deviation, _OF_WORKER)
        return Estimate(tabled * math.exp(self._prompt_log), error)

    def _logs(self, prompt_factor: float) -> Floats:
        """Logarithms of decode steps over what the tables say, the prompts' part taken out."""
        left = [max(0.1, 1 - prompt_factor * seen.prompts_share) for seen in self._seen]
        return np.array(
            [
                math.log(seen.tpot_seconds * part / seen.tabled_seconds)
                for seen, part in zip(self._seen, left, strict=True)
            ]
        )

    def _learn_prompts(self) -> None:
        """Find the factor on prompts under which the rows agree best, and how sure that is."""
        self._prompt_deviation = _PROMPT_ERROR
        if not self._seen:
            return
        inverse = np.linalg.inv(_covariance(self._seen))
        logs = np.log(_PROMPT_FACTORS)
        fits = []
        for factor in _PROMPT_FACTORS:
            off = self._logs(float(factor))
            fits.append(-0.5 * float(off @ inverse @ off))
        likely = np.array(fits) - 0.5 * (logs / _PROMPT_ERROR) ** 2
        weights = np.exp(likely - likely.max())
        weights /= weights.sum()
        self._prompt_log = float(weights @ logs)
        self._prompt_deviation = math.sqrt(float(weights @ (logs - self._prompt_log) ** 2))


def _seen(steps: KernelSteps, row: Deployment) -> _Seen:
    writing = row.requests_per_second * row.kind.output_tokens * row.tpot_seconds
    context = row.kind.prompt_tokens + row.kind.output_tokens / 2
    return _Seen(
        parallel=row.parallel,
        batch=max(1.0, writing),
        context_tokens=context,
        tabled_seconds=steps.decode_seconds(max(1.0, writing), context),
        tpot_seconds=row.tpot_seconds,
        prompts_share=row.requests_per_second * steps.prompt_seconds(row.kind.prompt_tokens),
    )


def _shared(place: tuple[Parallel, float, float], seen: _Seen) -> float:
    """The covariance of the error of a worker, at a batch and a context, with that of a row."""
    parallel, batch, context_tokens = place
    if parallel != seen.parallel:
        return _SHARED**2
    apart = math.hypot(
        math.log2(max(1.0, batch) / seen.batch), math.log2(context_tokens / seen.context_tokens)
    )
    return _SHARED**2 + _OF_WORKER**2 + _OF_PLACE**2 * math.exp(-((apart / _DOUBLINGS) ** 2) / 2)


def _covariance(seen: Sequence[_Seen]) -> Floats:
    places = [(one.parallel, one.batch, one.context_tokens) for one in seen]
    shared = [[_shared(place, other) for other in seen] for place in places]
    return np.array(shared) + _NOISE**2 * np.eye(len(seen))
