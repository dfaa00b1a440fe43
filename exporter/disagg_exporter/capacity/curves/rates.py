"""Prefill rate by step size, smoothed as much as the engine's own steps justify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.capacity.curves.curve import Point
from disagg_exporter.model import CurveSample

Numbers = NDArray[np.float64]

_ENOUGH_POINTS = 5
_GRID = 96
_SAMPLE_TOKENS = tuple(128 * 2**n for n in range(8))
# Smoothing widths, in logarithms of the size. Of two size classes at least: a narrower curve
# follows the sizes that kernels favour, and another one as soon as other sizes are observed.
_WIDTHS = (1.0, 0.7, 0.5, 0.35)
_DEGREE = 2
_REACH = 0.7
_SURE = 2.0
# Variance of a median relative to a mean's; and deviation from any curve: kernels favour sizes.
_MEDIAN_VARIANCE = 1.57
_JAGGED_RATIO = 0.02
_LEAST_FREEDOM = 0.05
_RIDGE = 1e-9


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Tokens per second by the tokens of a step, within the sizes seen; `errors` are relative."""

    sizes: Numbers
    rates: Numbers
    errors: Numbers

    @property
    def best(self) -> float:
        """The best rate: that of the size whose lower confidence bound is highest."""
        return float(self.rates[(self.rates * (1 - _SURE * self.errors)).argmax()])

    def first_size(self, rate: float) -> float:
        """Return the smallest size that reaches a rate, which must be on the curve."""
        at = int((self.rates >= rate).argmax())
        if not at:
            return float(self.sizes[0])
        low, high = np.log(self.rates[at - 1 : at + 1])
        part = (np.log(rate) - low) / (high - low)
        return float(self.sizes[at - 1] * (self.sizes[at] / self.sizes[at - 1]) ** part)

    def at(self, size: float) -> float:
        """Return the rate of a size within the curve."""
        return float(np.exp(np.interp(np.log(size), np.log(self.sizes), np.log(self.rates))))

    def samples(self) -> tuple[CurveSample, ...]:
        """Return its rates at sizes that are the same for every engine."""
        within = [n for n in _SAMPLE_TOKENS if self.sizes[0] <= n <= self.sizes[-1]]
        return tuple(CurveSample(n, self.at(n)) for n in within)


def rate_curve(points: Sequence[Point], gap_seconds: float = 0.0) -> RateCurve:
    """Return the rates of an engine's steps by their size.

    Local quadratic regression of the logarithms (Cleveland and Devlin, J. American Statistical
    Association 83, 1988); its width is chosen by leaving each size out in turn. No formula is
    assumed: measured corners are rounder than a roofline's, each in its own way, and rates fall
    again where attention makes large steps expensive. With fewer than five sizes the rates stay
    unsmoothed.

    Args:
        points: Steps by their prefill tokens, smallest first; at least one.
        gap_seconds: Host time from one step to the next, which a step costs beside its own.
    """
    sizes = np.array([point.size for point in points])
    rates = sizes / (np.array([point.seconds for point in points]) + gap_seconds)
    variances = relative_variances(points)
    if len(points) < _ENOUGH_POINTS:
        return RateCurve(sizes, rates, np.sqrt(variances))
    x, y, weights = np.log(sizes), np.log(rates), 1 / variances
    width, least = _WIDTHS[0], np.inf
    for each in _WIDTHS:
        rows = _rows(x, weights, x, each)
        left_out = (y - rows @ y) / np.maximum(1 - rows.diagonal(), _LEAST_FREEDOM)
        squares = float(weights @ left_out**2)
        if squares < least:
            width, least = each, squares
    grid = np.linspace(x[0], x[-1], _GRID)
    rows = _rows(x, weights, grid, width)
    return RateCurve(np.exp(grid), np.exp(rows @ y), np.sqrt(rows**2 @ variances))


def relative_variances(points: Sequence[Point]) -> Numbers:
    """Return the relative variance of each size's median time around a smooth curve.

    Part is chance and shrinks with the number of steps; part is that kernels favour some sizes over
    their neighbours, however many steps there are.
    """
    samples = np.array([point.samples for point in points])
    # A few samples may agree by chance: no size counts as less noisy than the usual one.
    scatters = np.array([point.scatter for point in points])
    usual = median(scatters.tolist())
    noise = np.where(scatters > 2 * usual, scatters, usual)
    variances: Numbers = _MEDIAN_VARIANCE * noise**2 / samples + _JAGGED_RATIO**2
    return variances


def _rows(x: Numbers, weights: Numbers, at: Numbers, width: float) -> Numbers:
    """Return the weight of each observation at each place."""
    away = x[None, :] - at[:, None]
    # Where sizes are few, widen until as many count as the curve needs.
    reach = np.sort(np.abs(away), axis=1)[:, _DEGREE]
    away /= np.maximum(width, _REACH * reach)[:, None]
    near = weights * np.exp(-0.5 * away**2)
    powers = away[..., None] ** np.arange(_DEGREE + 1)
    gram = np.einsum("ij,ija,ijb->iab", near, powers, powers)
    gram += _RIDGE * gram[:, :1, :1] * np.eye(_DEGREE + 1)
    here = np.zeros((len(at), _DEGREE + 1, 1))
    here[:, 0] = 1.0
    solved = np.linalg.solve(gram, here)[..., 0]
    rows: Numbers = np.einsum("ia,ija,ij->ij", solved, powers, near)
    return rows
