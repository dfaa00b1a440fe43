"""Which phase the time and the tokens of one step belong to (accounting A4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from disagg_exporter.model import Step, StepTotals
from disagg_exporter.steps.rows import kind_of


@dataclass(frozen=True, slots=True)
class WorkShares:
    """What a span of time was spent on.

    `dummy_share` of it held the device without doing work (data-parallel filler); of the rest
    `prefill_share` is prefill and what remains is decode.
    """

    prefill_share: float
    dummy_share: float = 0.0

    def divide(self, length_ns: int) -> tuple[int, int, int]:
        """Return whole (prefill, decode, dummy) nanoseconds that sum to `length_ns`."""
        dummy_ns = round(length_ns * self.dummy_share) if self.dummy_share else 0
        prefill_ns = round((length_ns - dummy_ns) * self.prefill_share)
        return prefill_ns, length_ns - dummy_ns - prefill_ns, dummy_ns


class Overflow(NamedTuple):
    """Step time that found no room above the mark: owed to every device of the engine."""

    work: WorkShares
    length_ns: int


def before_step(step: Step) -> StepTotals:
    """Return a step's running totals without its own time, so far as the step tells it."""
    elapsed_ns, kind = list(step.totals.elapsed_ns), kind_of(step)
    elapsed_ns[kind] = max(elapsed_ns[kind] - step.elapsed_ns, 0)
    context, generation, mixed, dummy = elapsed_ns
    return step.totals._replace(elapsed_ns=(context, generation, mixed, dummy))
