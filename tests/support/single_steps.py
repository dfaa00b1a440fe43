"""The cost model record by record, for tests; the accounting uses it in batches."""

from __future__ import annotations

import numpy as np

from disagg_exporter.attribution.cost_model.samples import Proxies, StepWork
from disagg_exporter.attribution.cost_model.split import StepSplit
from disagg_exporter.model import Step
from disagg_exporter.steps.rows import rows_of


def read(proxies: Proxies, step: Step, kind: int) -> StepWork:
    """Return the work of the next record's step."""
    return StepWork._make(proxies.read(rows_of([step]), np.array([kind]))[0].tolist())


def divide(
    split: StepSplit, step: Step, kind: int, length_ns: int, *, single: bool = True
) -> float:
    """Return the share of one step that is prefill, and learn from it."""
    one = np.array([kind]), np.array([length_ns]), np.array([single])
    return float(split.divide(rows_of([step]), *one)[0])


def preview(split: StepSplit, step: Step, kind: int) -> float:
    """Return the share of one step that is prefill, as known so far."""
    return float(split.preview(rows_of([step]), np.array([kind]))[0])
