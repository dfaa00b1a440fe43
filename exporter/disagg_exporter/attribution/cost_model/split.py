"""Divides mixed steps between prefill and decode, from an engine's records alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.attribution.cost_model.cost import (
    DECODE,
    LEAST_SECONDS,
    PREFILL,
    StepCost,
)
from disagg_exporter.attribution.cost_model.doubt import CostState
from disagg_exporter.attribution.cost_model.learned_costs import LearnedCost
from disagg_exporter.attribution.cost_model.samples import Proxies, StepWork
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import ExpectedSteps
from disagg_exporter.steps.rows import NOT_REPORTED, Rows

# Runs of pure steps are learned from as columns if their mean length is at least this.
_RUN_STEPS = 16
_PURE = {wire.CONTEXT: PREFILL, wire.GENERATION: DECODE}


def token_share(context_tokens: int, generation_tokens: int) -> float:
    """Return the prefill share of a mixed step by token count: crude, but always known."""
    return context_tokens / (context_tokens + generation_tokens)


class StepSplit:
    """Learns the cost of one engine's steps, and divides its mixed steps.

    `divide` is for the accounting: each record once, in the order in which records were made.
    `preview` is for the fast gauges: each record as it arrives, by the costs known then. Both take
    consecutive records and return their prefill shares, 1 for steps that are not mixed.
    `loss_seconds` and `gain_seconds` are how much longer, or shorter, mixed steps took than their
    parts separately; `known_seconds` is all step time for which that was known. Callers that have
    counted these may reset them to 0.
    """

    __slots__ = (
        "_cost",
        "_divided",
        "_kv_in_tokens",
        "_preempted",
        "_previewed",
        "gain_seconds",
        "known_seconds",
        "loss_seconds",
    )

    def __init__(self) -> None:
        self.loss_seconds = self.gain_seconds = self.known_seconds = 0.0
        self._kv_in_tokens = False
        self._cost = StepCost(kv_in_tokens=False)
        self._divided = Proxies()
        self._previewed = Proxies()
        self._preempted = False

    def save(self) -> LearnedCost:
        """Return the learned costs, without the progress of prompts."""
        return self._cost.save()

    def restore(self, saved: LearnedCost | None) -> None:
        """Replace the learned costs by saved ones, or by none."""
        if saved is None:
            self._cost = StepCost(kv_in_tokens=self._kv_in_tokens)
        else:
            self._cost, self._kv_in_tokens = StepCost.restored(saved), saved.kv_in_tokens

    def restart(self) -> None:
        """Continue with a new process of the engine: keep its costs, forget its prompts."""
        self.skip()
        self._previewed.restart()

    def skip(self) -> None:
        """Skip a gap of missing records."""
        self._divided.restart()
        self._preempted = False

    def divide(
        self,
        rows: Rows,
        kinds: NDArray[np.int64],
        lengths_ns: NDArray[np.int64],
        known: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        """Divide mixed steps, and learn from each step after that.

        `lengths_ns` is how long each held its devices. `known`: the record is of one step, its
        predecessor is known, and so is the step's length; other records are not learned from.
        """
        shares = np.ones(len(rows))
        teaches = known & self._teach(rows, kinds)
        in_tokens = rows["decode_kv_tokens"] != NOT_REPORTED
        decodes, mixed = rows["generation_requests"] > 0, kinds == wire.MIXED
        works, seconds = self._divided.read(rows, kinds), lengths_ns / 1e9
        changes = decodes & (in_tokens[decodes] != self._kv_in_tokens).any()
        regular = (works[:, 0] > 0) == (kinds == wire.CONTEXT)
        regular &= (works[:, 2] > 0) == (kinds == wire.GENERATION)
        regular &= seconds >= LEAST_SECONDS
        alone = mixed | changes | (teaches & ~regular)
        if np.count_nonzero(alone) * _RUN_STEPS > len(rows):
            alone |= teaches
        pure, alone_at = np.flatnonzero(teaches & ~alone), np.flatnonzero(alone)
        ends, first = np.searchsorted(pure, alone_at).tolist(), 0
        passed, until = 0.0, np.cumsum(seconds)
        for number, end in zip(alone_at.tolist(), ends, strict=True):
            if end > first:
                self._cost.learn_pure(works[pure[first:end]], seconds[pure[first:end]])
                first = end
            kind, teaching = int(kinds[number]), bool(teaches[number])
            if changes[number]:
                self._check_units(bool(in_tokens[number]))
            if teaching and kind in _PURE and self._cost.passes_over(_PURE[kind]):
                continue
            work = StepWork._make(works[number].tolist())
            if kind == wire.MIXED:
                self._cost.refresh()
                # Pure steps count as known together with the mixed step that follows them.
                since, passed = float(until[number]) - passed, float(until[number])
                shares[number] = self._share(rows[number], work, float(seconds[number]), since)
            if teaching:
                self._cost.learn(work, float(seconds[number]))
        self._cost.learn_pure(works[pure[first:]], seconds[pure[first:]])
        if self._cost.knows_interference:
            self.known_seconds += float(seconds.sum()) - passed
        return shares

    def preview(self, rows: Rows, kinds: NDArray[np.int64]) -> NDArray[np.float64]:
        """Divide mixed steps by the present costs."""
        shares = np.ones(len(rows))
        mixed = np.flatnonzero(kinds == wire.MIXED)
        if len(mixed):
            works = self._previewed.read(rows, kinds)
            for number in mixed:
                shares[number] = self._share(rows[number], StepWork._make(works[number].tolist()))
        else:
            self._previewed.pass_over(rows, kinds)
        return shares

    @property
    def state(self) -> CostState:
        """The state of the engine's costs."""
        return self._cost.state

    def take_expected(self) -> ExpectedSteps:
        """Return the steps that were predicted well enough since the last call."""
        return self._cost.take_expected()

    def _check_units(self, in_tokens: bool) -> None:
        """Start over if the unit of decode's cache has changed, that is, the source."""
        if in_tokens != self._kv_in_tokens:
            self._kv_in_tokens = in_tokens
            self._cost = StepCost(kv_in_tokens=in_tokens)

    def _share(
        self, row: np.void, work: StepWork, seconds: float = 0.0, since: float = 0.0
    ) -> float:
        """Return the prefill share, and count what mixing cost or saved in a step of `seconds`.

        `since` is all step time after the previous mixed step.
        """
        if not row["context_tokens"]:
            return 1.0
        parts = self._cost.parts(work) if self._cost.divides else None
        if parts is None:
            return token_share(int(row["context_tokens"]), int(row["generation_tokens"]))
        if seconds and self._cost.knows_interference:
            self.loss_seconds += max(parts.interference_ratio, 0.0) * seconds
            self.gain_seconds += max(-parts.interference_ratio, 0.0) * seconds
            self.known_seconds += since
        return parts.prefill_share

    def _teach(self, rows: Rows, kinds: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which steps are worth learning from."""
        teach: NDArray[np.bool_] = (kinds != wire.DUMMY_STEP) & (rows["encoder_inputs"] == 0)
        # A preempted request recomputes its tokens, and vLLM counts them as generated: such a step
        # is recognised by its tokens, but only while one is expected.
        if self._preempted or rows["preemptions"].any():
            more = (rows["generation_tokens"] > rows["generation_requests"]).tolist()
            for number, preempted in enumerate((rows["preemptions"] > 0).tolist()):
                recomputes = self._preempted and more[number]
                self._preempted = preempted or (self._preempted and not recomputes)
                teach[number] &= not recomputes
        return teach
