"""Which phase the time and the tokens of one step belong to (accounting A4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step, StepTotals


@dataclass(frozen=True, slots=True)
class Work:
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

    work: Work
    length_ns: int


def kind_of(step: Step) -> int:
    """Return the step's kind, by the one definition that the engine's own totals use too."""
    if not (step.context_tokens or step.encoder_inputs or step.dummy):
        return wire.GENERATION  # what the definition says, without asking: nearly all are such
    return wire.step_kind(
        context_requests=step.context_requests,
        context_tokens=step.context_tokens,
        generation_tokens=step.generation_tokens,
        computed_tokens=step.computed_tokens,
        external_tokens=step.external_tokens,
        encoder_inputs=step.encoder_inputs,
        dummy=step.dummy,
    )


def before_step(step: Step) -> StepTotals:
    """Return a step's running totals without its own time, so far as the step tells it."""
    elapsed_ns, kind = list(step.totals.elapsed_ns), kind_of(step)
    elapsed_ns[kind] = max(elapsed_ns[kind] - step.elapsed_ns, 0)
    context, generation, mixed, dummy = elapsed_ns
    return step.totals._replace(elapsed_ns=(context, generation, mixed, dummy))


def tokens_of(step: Step, kind: int) -> tuple[int, int]:
    """Return the (prefill, decode) tokens the step computed; cached tokens are nobody's."""
    if kind == wire.DUMMY_STEP:
        return 0, 0
    if kind == wire.GENERATION:
        return 0, step.context_tokens + step.generation_tokens
    return step.context_tokens, step.generation_tokens
