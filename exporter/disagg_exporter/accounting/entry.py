"""What a lane keeps of its streams, and what it makes of records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from disagg_exporter.accounting.phase import Work
from disagg_exporter.model import Step, StepTotals


class Overflow(NamedTuple):
    """Step time that found no room above the mark: owed to every device of the engine."""

    work: Work
    length_ns: int


@dataclass(slots=True, eq=False)
class Stream:
    """One counter of an engine.

    Everything up to `sequence` is in the books, where its totals were `totals`; `highest` is the
    newest record of it that came, or is known to be lost.
    """

    sequence: int
    totals: StepTotals
    highest: int


def promises_work(step: Step) -> bool:
    """Say whether an engine has something left to do after a step."""
    return step.running > 0 or step.waiting > 0
