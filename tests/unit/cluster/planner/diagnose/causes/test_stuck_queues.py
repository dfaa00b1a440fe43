"""What is said of queues that hardly drain: no longer waits than there can have been."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.diagnose import diagnose
from disagg_cluster.planner.diagnose.verdict.values import Cause, ModelDiagnosis
from support.diagnosed_lines import DECODE, PREFILL, TARGETS
from support.diagnosis_windows import BEGIN_SECONDS, WindowMaker

STUCK = {"requests": 0.02, "transfers": 0.02, "waiting": 80.0, "running": 60.0, "kv_usage": 0.99}
FULL = replace(DECODE[0], then=STUCK)


def longest_wait_seconds(diagnosis: ModelDiagnosis) -> float:
    return max(
        sum(seconds for _, seconds in each.observed_seconds)
        for each in diagnosis.parts
        if each.engine is not None
    )


@pytest.mark.parametrize("stood_seconds", [90.0, 300.0])
def test_a_wait_is_no_longer_than_the_queue_has_stood(stood_seconds: float) -> None:
    maker = WindowMaker(onset_seconds=600.0 - stood_seconds)

    (found,), _ = diagnose(maker.make((*PREFILL, FULL, DECODE[1])), TARGETS)

    # At its latest rate it would drain within more than an hour.
    assert 10.0 < longest_wait_seconds(found) <= stood_seconds + 15.0
    assert [each.cause for each in found.findings] == [Cause.DECODE_BACK_PRESSURE]
    assert found.findings[0].engine_cost_seconds <= stood_seconds + 15.0


def test_a_wait_is_no_longer_than_an_engine_is_observed() -> None:
    window = WindowMaker(onset_seconds=0.0).make((*PREFILL, FULL, DECODE[1]))
    began = BEGIN_SECONDS + 400.0
    families = {
        name: tuple(
            replace(each, times_seconds=each.times_seconds[late], values=each.values[late])
            for each in series
            for late in [each.times_seconds >= began]
            if np.any(late)
        )
        for name, series in window.families.items()
    }

    (found,), _ = diagnose(replace(window, families=families), TARGETS)

    assert longest_wait_seconds(found) <= 200.0 + 15.0
