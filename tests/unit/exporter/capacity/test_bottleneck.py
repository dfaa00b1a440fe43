from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_exporter.capacity.bottleneck import (
    ActivityRatios,
    BottleneckEvidence,
    DeviceActivity,
    bottleneck_of,
)
from disagg_exporter.model import Bottleneck, DeviceReading

BUSY = BottleneckEvidence(kv_usage_ratio=0.4, used_ratio=0.8, gap_ratio=0.05)


@pytest.mark.parametrize(
    ("evidence", "bound"),
    [
        (None, Bottleneck.UNKNOWN),
        (BUSY, Bottleneck.UNKNOWN),
        (replace(BUSY, kv_usage_ratio=0.95), Bottleneck.UNKNOWN),
        (replace(BUSY, kv_usage_ratio=0.95, waiting_ratio=0.1), Bottleneck.KV),
        (replace(BUSY, kv_usage_ratio=0.95, preempted=True), Bottleneck.KV),
        (replace(BUSY, kv_usage_ratio=None, preempted=True, gap_ratio=0.5), Bottleneck.UNKNOWN),
        (replace(BUSY, kv_usage_ratio=None, gap_ratio=0.5), Bottleneck.HOST),
        (replace(BUSY, kv_usage_ratio=0.89, waiting_ratio=1.0), Bottleneck.UNKNOWN),
        (replace(BUSY, kv_usage_ratio=0.95, waiting_ratio=0.5, used_ratio=0.2), Bottleneck.KV),
        (replace(BUSY, used_ratio=0.49), Bottleneck.NONE),
        (replace(BUSY, used_ratio=0.49, gap_ratio=0.6), Bottleneck.NONE),
        (replace(BUSY, gap_ratio=0.25, tensor_ratio=0.5, dram_ratio=0.3), Bottleneck.HOST),
        (replace(BUSY, used_ratio=None, gap_ratio=0.25), Bottleneck.HOST),
        (replace(BUSY, gap_ratio=None), Bottleneck.UNKNOWN),
        (replace(BUSY, tensor_ratio=0.5, dram_ratio=0.3), Bottleneck.COMPUTE),
        (replace(BUSY, tensor_ratio=0.1, dram_ratio=0.7), Bottleneck.BANDWIDTH),
        (replace(BUSY, tensor_ratio=0.1, dram_ratio=0.15), Bottleneck.UNKNOWN),
        (replace(BUSY, tensor_ratio=0.5), Bottleneck.UNKNOWN),
        (replace(BUSY, prefill_ratio=0.9, knee_ratio=1.0), Bottleneck.COMPUTE),
        (replace(BUSY, prefill_ratio=0.9, knee_ratio=0.9), Bottleneck.BANDWIDTH),
        (replace(BUSY, prefill_ratio=0.9), Bottleneck.UNKNOWN),
        (replace(BUSY, prefill_ratio=0.1, knee_ratio=1.0), Bottleneck.UNKNOWN),
        (
            replace(BUSY, prefill_ratio=0.9, knee_ratio=1.0, tensor_ratio=0.2, dram_ratio=0.6),
            Bottleneck.BANDWIDTH,
        ),
    ],
)
def test_the_first_matching_verdict_is_given(
    evidence: BottleneckEvidence | None, bound: Bottleneck
) -> None:
    """The table of docs/capacity.md, just at its limits and just off them."""
    assert bottleneck_of(evidence) is bound


@pytest.mark.parametrize(
    ("bound", "inside", "edge", "outside"),
    [
        pytest.param(
            Bottleneck.KV,
            replace(BUSY, kv_usage_ratio=0.91, preempted=True),
            replace(BUSY, kv_usage_ratio=0.89, preempted=True),
            replace(BUSY, kv_usage_ratio=0.70, preempted=True),
            id="kv",
        ),
        pytest.param(
            Bottleneck.NONE,
            replace(BUSY, used_ratio=0.49),
            replace(BUSY, used_ratio=0.51),
            replace(BUSY, used_ratio=0.60),
            id="none",
        ),
        pytest.param(
            Bottleneck.HOST,
            replace(BUSY, gap_ratio=0.26),
            replace(BUSY, gap_ratio=0.24),
            replace(BUSY, gap_ratio=0.20),
            id="host",
        ),
        pytest.param(
            Bottleneck.COMPUTE,
            replace(BUSY, tensor_ratio=0.60, dram_ratio=0.40),
            replace(BUSY, tensor_ratio=0.39, dram_ratio=0.40),
            replace(BUSY, tensor_ratio=0.30, dram_ratio=0.40),
            id="compute",
        ),
        pytest.param(
            Bottleneck.BANDWIDTH,
            replace(BUSY, tensor_ratio=0.30, dram_ratio=0.40),
            replace(BUSY, tensor_ratio=0.41, dram_ratio=0.40),
            replace(BUSY, tensor_ratio=0.60, dram_ratio=0.40),
            id="bandwidth",
        ),
        pytest.param(
            Bottleneck.BANDWIDTH,
            replace(BUSY, tensor_ratio=0.10, dram_ratio=0.21),
            replace(BUSY, tensor_ratio=0.10, dram_ratio=0.19),
            replace(BUSY, tensor_ratio=0.10, dram_ratio=0.16),
            id="least activity",
        ),
        pytest.param(
            Bottleneck.COMPUTE,
            replace(BUSY, prefill_ratio=0.51, knee_ratio=1.0),
            replace(BUSY, prefill_ratio=0.49, knee_ratio=1.0),
            replace(BUSY, prefill_ratio=0.42, knee_ratio=1.0),
            id="mostly prefill",
        ),
        pytest.param(
            Bottleneck.COMPUTE,
            replace(BUSY, prefill_ratio=0.9, knee_ratio=1.01),
            replace(BUSY, prefill_ratio=0.9, knee_ratio=0.99),
            replace(BUSY, prefill_ratio=0.9, knee_ratio=0.80),
            id="knee",
        ),
    ],
)
def test_a_verdict_does_not_flap_at_its_limit(
    bound: Bottleneck,
    inside: BottleneckEvidence,
    edge: BottleneckEvidence,
    outside: BottleneckEvidence,
) -> None:
    """It stays while its figure fluctuates around the limit, and is not entered by that."""
    told = Bottleneck.UNKNOWN
    verdicts = []
    for evidence in (edge, inside, edge, inside, edge, outside, edge):
        told = bottleneck_of(evidence, told)
        verdicts.append(told is bound)

    assert verdicts == [False, True, True, True, True, False, False]


def test_activity_is_a_fading_mean_over_reporting_devices() -> None:
    activity = DeviceActivity()
    for _ in range(100):
        activity.ingest(
            [
                DeviceReading("a", 0, tensor_ratio=0.5, dram_ratio=0.25),
                DeviceReading("b", 0, tensor_ratio=0.3, dram_ratio=None),
            ]
        )
    activity.ingest([DeviceReading("a", 0, tensor_ratio=0.9, dram_ratio=0.25)])

    assert activity.of(["a"]) == ActivityRatios(pytest.approx(0.52), pytest.approx(0.25))
    assert activity.of(["b"]) == ActivityRatios()
    assert activity.of([]) == ActivityRatios()
