"""Divides an engine's busy time between the phases when only sums are known, as from a page.

Learned per engine from stretches of some seconds: how long its devices were busy, the steps,
prompts and tokens that it counted meanwhile, and the times between its tokens. Until that is
trusted, by token count. docs/decisions/0005-mixed-steps.md has the reasons.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from disagg_exporter.attribution.cost_model.learned_costs import (
    MOST_COUNT,
    MOST_SECONDS,
    check_range,
)
from disagg_exporter.attribution.pages.window_cost import Columns, WindowCosts, fit
from disagg_exporter.attribution.pages.window_steps import BUCKETS, Cutting, Sums, cutting
from disagg_exporter.model import Role, Split

MOST_STRETCHES = 240
"""Stretches kept, a row of sums for each."""
RECENT = 24
_MOST_SEEN = 2**60
_MOST_BUCKETS = 1024
_MOST_EXPERTS = 16


@dataclass(frozen=True, slots=True)
class LearnedShares:
    """The saved state of a `PhaseShares`; one restored from it divides the same.

    `rows` are the sums over stretches: steps, prompts, tokens of prefill and of decode, steps by
    the time between tokens, then busy seconds and all seconds; `pending` those of the unfinished
    stretch. `costs` are seconds per step, request and token, then for the experts.
    `tokens_per_second` and `first_slow` are those of `Cutting`.

    Raises:
        ValueError: The values are not those of such costs.
    """

    stretches: int
    rows: tuple[tuple[float, ...], ...]
    pending: tuple[float, ...]
    costs: tuple[float, ...] | None
    tokens_per_second: float
    first_slow: int
    next_fit: int
    errors: tuple[float, ...]
    seconds_seen: float

    def __post_init__(self) -> None:
        """Check the values' ranges."""
        if len(self.rows) > MOST_STRETCHES or len(self.errors) > RECENT:
            raise ValueError(f"more than {MOST_STRETCHES} rows or {RECENT} errors")
        if {len(row) for row in self.rows} - {len(self.pending)}:
            raise ValueError("rows: they differ in length")
        for row in self.rows:
            check_range("rows", filter(None, row), 1e-9, MOST_COUNT)
            check_range("rows: steps", row[:1], 1e-9, MOST_COUNT)
            check_range("rows: busy seconds", row[-2:-1], 1e-3, MOST_SECONDS)
        check_range("pending", filter(None, self.pending), 1e-9, MOST_COUNT)
        if self.costs is not None:
            if not 3 <= len(self.costs) <= _MOST_EXPERTS:
                raise ValueError(f"costs: {len(self.costs)} of them, expected 3 or more")
            check_range("costs", filter(None, self.costs), 1e-60, MOST_SECONDS)
        check_range("tokens_per_second", (self.tokens_per_second,), 0, MOST_COUNT)
        check_range("first_slow", (self.first_slow,), 0, _MOST_BUCKETS)
        check_range("stretches", (self.stretches,), len(self.rows), _MOST_SEEN)
        check_range("next_fit", (self.next_fit,), 0, self.stretches + MOST_STRETCHES)
        check_range("errors", self.errors, 0, MOST_COUNT)
        check_range("seconds_seen", (self.seconds_seen,), 0, MOST_COUNT)

    def lighter(self) -> LearnedShares:
        """Return it with the newer half of its rows; it divides the same."""
        return replace(self, rows=self.rows[(len(self.rows) + 1) // 2 :])


# A stretch: long enough for most prompts to begin and end in it, short enough for their number to
# vary.
_LEAST_SECONDS, _MOST_SECONDS, _ENOUGH_PROMPTS = 1.0, 20.0, 8
# A stretch is at least this part of all time so far, until stretches are ten seconds long.
_PART, _LEAST_SECONDS_LATER = 1 / 120, 10.0
_LEAST_BUSY_SECONDS = 0.01
_ENOUGH = 12
_MOST_BETWEEN_FITS = 24
_TRUSTED_RESIDUAL = 0.25
# Indexes in the sums of a stretch; the counts come first.
_STEPS, _PROMPTS, _BUSY, _SECONDS = 0, 1, -2, -1
# Busy time beyond this excess over what the counts explain: a prompt is under way.
_UNEXPLAINED = 0.2


class Counts(NamedTuple):
    """What an engine counted over a stretch; `steps` and `prompts` are 0 if unknown.

    `gaps` are the tokens by the time since the previous one, in the buckets of
    `engine_pages.histograms`; empty if unknown.
    """

    prefill_tokens: int = 0
    decode_tokens: int = 0
    steps: float = 0.0
    prompts: float = 0.0
    gaps: tuple[float, ...] = ()


class PhaseShares:
    """The step costs of one engine; `stretches` is how many it has learned from."""

    def __init__(self) -> None:
        self.stretches = 0
        self._rows: deque[Columns] = deque(maxlen=MOST_STRETCHES)
        self._sum = np.zeros(6 + BUCKETS)
        self._costs: WindowCosts | None = None
        self._cutting = Cutting()
        self._step_tokens: int | None = None
        self._next_fit = _ENOUGH // 2
        self._errors: deque[float] = deque(maxlen=RECENT)
        self._seconds_seen = 0.0

    def limit_steps(self, step_tokens: int | None) -> None:
        """Set the maximum tokens that the engine computes in a step; None if unknown."""
        if step_tokens == self._step_tokens:
            return
        self._step_tokens = step_tokens
        if self._costs is not None and self._rows:
            self._cutting = cutting(Sums.of(np.stack(self._rows)), self._costs, step_tokens)

    def share(self, role: Role, counts: Counts, busy_seconds: float) -> float:
        """Return the prefill share of a stretch's busy time.

        Busy time without a token means that a prompt is being computed, whose tokens are counted
        when it ends; except if the role is decode.
        """
        prefill_tokens, decode_tokens, *_ = counts
        if not prefill_tokens and not decode_tokens:
            return 0.0 if role is Role.DECODE else 1.0
        if self._costs is None or not self.trusted:
            return prefill_tokens / (prefill_tokens + decode_tokens)
        steps = self._cutting.steps(Sums.of(_row(counts)[None]), self._costs)
        prefill, decode = (float(seconds[0]) for seconds in self._costs.divide(steps))
        if role is not Role.DECODE:
            prefill += max(busy_seconds - (1 + _UNEXPLAINED) * (prefill + decode), 0.0)
        if prefill + decode <= 0:
            return float(bool(prefill_tokens))
        return min(max(prefill / (prefill + decode), 0.0), 1.0)

    def learn(self, counts: Counts, busy_seconds: float, seconds: float) -> None:
        """Learn from the counts and busy time of `seconds`."""
        self._seconds_seen += seconds
        self._sum += np.concatenate((_row(counts), (busy_seconds, seconds)))
        row = self._sum
        least = min(max(_PART * self._seconds_seen, _LEAST_SECONDS), _LEAST_SECONDS_LATER)
        enough = row[_SECONDS] >= least and row[_PROMPTS] >= _ENOUGH_PROMPTS
        if not enough and row[_SECONDS] < _MOST_SECONDS:
            return
        self._sum = np.zeros_like(row)
        if row[_STEPS] <= 0 or row[_BUSY] < _LEAST_BUSY_SECONDS:
            return
        if self._costs is not None:
            steps = self._cutting.steps(Sums.of(row[None]), self._costs)
            foreseen = float(self._costs.busy_seconds(steps)[0])
            self._errors.append(abs(foreseen - row[_BUSY]) / row[_BUSY])
        self._rows.append(row)
        self.stretches += 1
        if self.stretches >= self._next_fit:
            self._next_fit += min(max(self.stretches // 4, 1), _MOST_BETWEEN_FITS)
            self._fit_anew()

    def save(self) -> LearnedShares | None:
        """Return the learned state as plain values; None if there is none."""
        if not self.stretches:
            return None
        costs = self._costs
        return LearnedShares(
            stretches=self.stretches,
            rows=tuple(tuple(row.tolist()) for row in self._rows),
            pending=tuple(self._sum.tolist()),
            costs=costs and (costs.step, costs.request, costs.token, *costs.experts),
            tokens_per_second=self._cutting.tokens_per_second,
            first_slow=self._cutting.first_slow,
            next_fit=self._next_fit,
            errors=tuple(self._errors),
            seconds_seen=self._seconds_seen,
        )

    @classmethod
    def restored(cls, saved: LearnedShares | None) -> Self:
        """Return one with saved state.

        The state is ignored if its buckets of the time between tokens differ from ours.
        """
        shares = cls()
        if saved is None or len(saved.pending) != len(shares._sum):
            return shares
        shares.stretches, shares._seconds_seen = saved.stretches, saved.seconds_seen
        shares._rows.extend(np.array(row) for row in saved.rows)
        shares._sum = np.array(saved.pending)
        if saved.costs is not None:
            step, request, token, *experts = saved.costs
            shares._costs = WindowCosts(step, request, token, tuple(experts))
        shares._cutting = Cutting(saved.tokens_per_second, saved.first_slow)
        shares._next_fit = saved.next_fit
        shares._errors.extend(saved.errors)
        return shares

    @property
    def residual_ratio(self) -> float | None:
        """The mean error of predicted busy time of a stretch, over that time."""
        return sum(self._errors) / len(self._errors) if self._errors else None

    @property
    def trusted(self) -> bool:
        """Whether the costs are known well enough to divide by."""
        residual = self.residual_ratio
        learned = self.stretches >= _ENOUGH and self._costs is not None
        return learned and residual is not None and residual <= _TRUSTED_RESIDUAL

    @property
    def split(self) -> Split:
        """How the engine's busy time is divided now."""
        return Split.MODEL if self.trusted else Split.TOKENS

    @property
    def cuts_prompts(self) -> bool:
        """Whether its prompts are longer than one step computes."""
        return self._cutting.tokens_per_second > 0 or self._cutting.step_tokens > 0

    def _fit_anew(self) -> None:
        rows = np.stack(self._rows)
        sums = Sums.of(rows)
        self._cutting = cutting(sums, self._costs, self._step_tokens)
        steps = self._cutting.steps(sums, self._costs)
        self._costs = fit(steps, rows[:, _BUSY], rows[:, _SECONDS], self._costs)


def _row(counts: Counts) -> Columns:
    """Return the sums of a stretch, in order, with tokens by gap converted to steps by gap."""
    prefill_tokens, decode_tokens, steps, prompts, gaps = counts
    if prefill_tokens or decode_tokens:
        # If steps are not counted, each token counts as one; if prompts are not, all count as one.
        steps = max(steps or float(decode_tokens), 1.0)
        prompts = prompts or float(bool(prefill_tokens))
    by_gap = np.array(gaps) if gaps else np.zeros(BUCKETS)
    gaps_total = by_gap.sum()
    if gaps_total > 0:
        by_gap = by_gap * (steps / gaps_total)
    return np.array([steps, prompts, prefill_tokens, decode_tokens, *by_gap])
