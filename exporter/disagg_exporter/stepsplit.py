"""The share of a mixed step that is prefill, from an engine's records alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step
from disagg_exporter.stepcost import CostState, StepCost
from disagg_exporter.steprows import Rows, steps_of
from disagg_exporter.stepwork import Proxies, StepWork


def token_share(step: Step) -> float:
    """Split a mixed step by token count: crude, but it asks nothing of the engine."""
    return step.context_tokens / (step.context_tokens + step.generation_tokens)


class StepSplit:
    """Learns what one engine's steps cost, and divides its mixed steps.

    `settle` is for the books: each record once, in the order in which records were made. `glance`
    is for the fast gauges: each record as it arrives, divided by what is known then.
    """

    __slots__ = ("_arriving", "_cost", "_kv_in_tokens", "_preempted", "_settling")

    def __init__(self) -> None:
        self._kv_in_tokens = False
        self._cost = StepCost(kv_in_tokens=False)
        self._settling = Proxies()
        self._arriving = Proxies()
        self._preempted = False

    def restart(self) -> None:
        """Go on with a new process of the same engine: its costs stay, its prompts are gone."""
        self.skip()
        self._arriving.restart()

    def skip(self) -> None:
        """Pass over records that never came."""
        self._settling.restart()
        self._preempted = False

    def settle(self, step: Step, kind: int, length_ns: int, *, single: bool = True) -> float:
        """Return the share of a mixed step that is prefill, and then learn from the step.

        `length_ns` is how long it held its devices. `single`: the record is of one step, and the
        record before it is known; nothing is learned from others.
        """
        work = self._settling.read(step, kind)
        self._mind_units(step)
        share = self._share(step, kind, work)
        if single and self._teaches(step, kind):
            self._cost.learn(work, length_ns / 1e9)
        return share

    def settle_all(
        self,
        rows: Rows,
        kinds: NDArray[np.int64],
        lengths_ns: NDArray[np.int64],
        single: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        """Settle many records that follow each other; return their shares."""
        told = zip(
            steps_of(rows), kinds.tolist(), lengths_ns.tolist(), single.tolist(), strict=True
        )
        return np.array([self.settle(*one[:3], single=one[3]) for one in told])

    def glance(self, step: Step, kind: int) -> float:
        """Return the share of a mixed step that is prefill, as far as is known now."""
        if kind != wire.MIXED:
            # Nearly all steps are such, and nothing is learned here.
            self._arriving.pass_over(step, kind)
            return 1.0
        return self._share(step, kind, self._arriving.read(step, kind))

    @property
    def state(self) -> CostState:
        """How well the engine's costs are known."""
        return self._cost.state

    def _mind_units(self, step: Step) -> None:
        """Begin anew if decode's cache is told in another unit than before: by another source."""
        in_tokens = step.decode_kv_tokens is not None
        if step.generation_requests and in_tokens != self._kv_in_tokens:
            self._kv_in_tokens = in_tokens
            self._cost = StepCost(kv_in_tokens=in_tokens)

    def _share(self, step: Step, kind: int, work: StepWork) -> float:
        if kind != wire.MIXED or not step.context_tokens:
            return 1.0
        share = self._cost.prefill_share(work) if self._cost.trusted else None
        return token_share(step) if share is None else share

    def _teaches(self, step: Step, kind: int) -> bool:
        # A request that was preempted computes its tokens anew, and vLLM counts them as
        # generated: such a step is told apart by its tokens, and only while one is awaited.
        recomputes = self._preempted and step.generation_tokens > step.generation_requests
        self._preempted = step.preemptions > 0 or (self._preempted and not recomputes)
        return kind != wire.DUMMY_STEP and not recomputes and not step.encoder_inputs
