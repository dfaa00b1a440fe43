"""An engine's learned step costs, as plain values that can be saved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from disagg_exporter.attribution.cost_model.mixed_bias import LearnedBias

MOST_SECONDS = 1e6
"""For one step or stretch: eleven days."""
MOST_COUNT = 1e12
"""For tokens, requests or steps at once."""


def check_range(name: str, values: Iterable[float], least: float, most: float) -> None:
    """Raise `ValueError` unless all values are finite numbers within a range, ends included."""
    for value in values:
        if not least <= value <= most:
            raise ValueError(f"{name} is {value}, expected {least:g} to {most:g}")


LearnedCell = tuple[int, int, int, float, float, float, float, float, float]
"""Similar steps: their key (bins of tokens, decode cache and attention), then their weight and the
weighted sums of the four terms of their work and of their seconds."""

LearnedLines = tuple[bool, bool, bool, tuple[float, ...], tuple[float, ...]]
"""A fit: whether requests, experts and decode beside a prompt have terms, then the seconds per term
of computing and reading."""

LearnedDoubt = tuple[float, float, float, float, float, tuple[tuple[int, float, float], ...]]
"""The doubt of a fit: prefill and interference in mixed steps, the errors of both, the mixed part
of step time, and reference steps: number, seconds and their error."""

MOST_POINTS = 12
MOST_CELLS = 1200
_MOST_WEIGHT = 1e15
_MOST_STEPS = 2**60
_MOST_BIN = 10_000
_LEAST_CELL_SECONDS = 1e-10
_MOST_BIAS_SECONDS = 1e3 * MOST_SECONDS
# Upper bound of steps to the next fit: 8192 samples that each stand for eight, and the first 32.
_MOST_TO_NEXT_FIT = 8 * 8192 + 32


@dataclass(frozen=True, slots=True)
class LearnedCost:
    """The saved cost model of one rank (`StepCost`); a model restored from it predicts the same.

    `cells` are in the order of their first steps; `now` is the weight of a present step. `steps`
    and `residuals` are by kind of step: prefill, decode, mixed. `pace` is the mean and the mean of
    means of the speed factor, `usual_pace` the pace of the last hours and the step time it covers;
    `bias` is how recent steps differed from their predictions (`MixedBias`).
    `doubt` is of the last fit, without cells added since.

    Raises:
        ValueError: The values are not those of a cost model.
    """

    kv_in_tokens: bool
    lines: LearnedLines | None
    pace: tuple[float, float]
    fits: int
    next_fit: int
    reach_tokens: float
    steps: tuple[int, int, int]
    residuals: tuple[float, float, float]
    now: float
    doubt: LearnedDoubt
    cells: tuple[LearnedCell, ...] = ()
    usual_pace: tuple[float, float] = (1.0, 0.0)
    bias: LearnedBias = (0.0, 0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        """Check the values' ranges."""
        check_range("pace", self.pace, 0, 1e3)
        check_range("usual_pace", self.usual_pace, 0, MOST_SECONDS)
        check_range("bias", self.bias, 0, _MOST_BIAS_SECONDS)
        check_range("steps", self.steps, 0, _MOST_STEPS)
        check_range("fits", (self.fits,), 0, _MOST_STEPS)
        check_range("next_fit", (self.next_fit,), 0, sum(self.steps) + _MOST_TO_NEXT_FIT)
        check_range("reach_tokens", (self.reach_tokens,), 0, MOST_COUNT)
        check_range("residuals", self.residuals, 0, 1)
        check_range("now", (self.now,), 1e-9, _MOST_WEIGHT)
        if self.lines is not None:
            requests, experts, beside, computing, reading = self.lines
            terms = 3 + (not self.kv_in_tokens) + requests + 2 * beside
            lengths = terms, terms + 3 * experts
            if (len(computing), len(reading)) != lengths:
                raise ValueError(f"lines have other terms than {lengths}")
            check_range("lines", filter(None, computing + reading), 1e-60, MOST_SECONDS)
        _check_doubt(self.doubt)
        if len(self.cells) > MOST_CELLS:
            raise ValueError(f"{len(self.cells)} cells, expected at most {MOST_CELLS}")
        for cell in self.cells:
            _check_cell(cell)
        if len({cell[:3] for cell in self.cells}) < len(self.cells):
            raise ValueError("cells: a key stands there twice")

    def lighter(self) -> LearnedCost:
        """Return it with the heavier half of its cells; it predicts the same."""
        heaviest = sorted(self.cells, key=lambda cell: cell[3], reverse=True)
        kept = set(heaviest[: len(heaviest) // 2])
        return replace(self, cells=tuple(cell for cell in self.cells if cell in kept))


def _check_doubt(doubt: LearnedDoubt) -> None:
    *said, prefill_error, interference_error, mixed_ratio, points = doubt
    check_range("doubt: said", said, -2, 2)
    check_range("doubt: error", (prefill_error, interference_error), 0, 10)
    check_range("doubt: mixed", (mixed_ratio,), 0, 2)
    numbers = [number for number, *_ in points]
    check_range("doubt: points", numbers, 0, MOST_POINTS - 1)
    if len(set(numbers)) < len(numbers):
        raise ValueError("doubt: a point stands there twice")
    check_range("doubt: seconds", (each for _, *both in points for each in both), 0, MOST_SECONDS)


def _check_cell(cell: LearnedCell) -> None:
    weight = cell[3]
    check_range("cells: bin", cell[:3], -_MOST_BIN, _MOST_BIN)
    check_range("cells: weight", (weight,), 1e-100, _MOST_WEIGHT)
    prefill, attended, decode, decode_kv, seconds = (each / weight for each in cell[4:])
    check_range("cells: tokens", (prefill + decode,), 1e-12, MOST_COUNT)
    # Tokens are whole numbers, and steps without any are in separate cells.
    check_range("cells: work", filter(None, (prefill, decode)), 1e-6, MOST_COUNT)
    check_range("cells: context", (attended, decode_kv), 0, MOST_COUNT**2)
    check_range("cells: seconds", (seconds,), _LEAST_CELL_SECONDS, MOST_SECONDS)
