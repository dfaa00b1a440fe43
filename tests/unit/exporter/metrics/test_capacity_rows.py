"""How full engines are on the page: each alone and summed as GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_exporter.model import (
    CapacitySource,
    DecodeLimit,
    Device,
    EngineCapacity,
    EngineState,
    EngineStatus,
    LimitConfidence,
    PrefillLimit,
    Role,
    Snapshot,
)
from support.client_metrics import render

H100 = "NVIDIA H100 80GB HBM3"


def engine(name: str, role: Role, *gpus: str) -> EngineStatus:
    return EngineStatus(name, role, "vllm", "", "llama", gpus, EngineState.READY, True, "", "")


def page(
    engines: list[EngineStatus], capacities: list[EngineCapacity], **weights: float
) -> dict[tuple[str, ...], float]:
    """Rows of a node with GPUs a, b, c: (name, label values …) to number."""
    devices = tuple(
        Device(gpu, index, H100, f"nvidia{index}", weight=weights.get(gpu, 1.0))
        for index, gpu in enumerate("abc")
    )
    snapshot = Snapshot(
        *(0, 0.0, 10),
        devices=devices,
        engines=tuple(engines),
        capacities=tuple(capacities),
    )
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in render(snapshot, 0)
        for sample in family.samples
    }


def test_a_pool_sums_what_its_engines_use_in_gpus() -> None:
    """A TP-2 engine half full and one on a single GPU completely full use two GPUs of three."""
    rows = page(
        [engine("d-0", Role.DECODE, "a", "b"), engine("d-1", Role.DECODE, "c")],
        [EngineCapacity("d-0", 0.5), EngineCapacity("d-1", 1.0)],
    )

    key = ("decode", "llama", H100, "")
    assert rows["disagg_node_capacity_used_gpus", *key] == pytest.approx(2.0)
    assert rows["disagg_node_capacity_known_gpus", *key] == pytest.approx(3.0)
    assert rows["disagg_engine_capacity_used_ratio", "d-0", "decode"] == 0.5


def test_gpus_of_an_engine_with_unknown_use_are_in_neither_sum() -> None:
    rows = page(
        [engine("p-0", Role.PREFILL, "a"), engine("p-1", Role.PREFILL, "b")],
        [EngineCapacity("p-0", 0.25), EngineCapacity("p-1", None)],
    )

    assert rows["disagg_node_capacity_known_gpus", "prefill", "llama", H100, ""] == 1.0
    assert ("disagg_engine_capacity_used_ratio", "p-1", "prefill") not in rows


def test_nothing_known_leaves_the_sums_absent() -> None:
    rows = page([engine("p-0", Role.PREFILL, "a")], [EngineCapacity("p-0", None)])

    assert not [row for row in rows if row[0].startswith("disagg_node_capacity")]


def test_a_shared_gpu_is_divided_among_its_ready_engines() -> None:
    """Two on GPU a; the third there is still starting."""
    starting = replace(engine("m-2", Role.MIXED, "a"), state=EngineState.STARTING)
    rows = page(
        [engine("p-0", Role.PREFILL, "a"), engine("d-0", Role.DECODE, "a"), starting],
        [EngineCapacity("p-0", 1.0), EngineCapacity("d-0", 0.5), EngineCapacity("m-2", None)],
    )

    assert rows["disagg_node_capacity_used_gpus", "prefill", "llama", H100, ""] == 0.5
    assert rows["disagg_node_capacity_used_gpus", "decode", "llama", H100, ""] == 0.25
    assert rows["disagg_node_capacity_known_gpus", "decode", "llama", H100, ""] == 0.5


def test_a_mig_slice_counts_as_its_share() -> None:
    rows = page([engine("d-0", Role.DECODE, "a")], [EngineCapacity("d-0", 0.5)], a=3 / 7)

    known = rows["disagg_node_capacity_known_gpus", "decode", "llama", H100, ""]
    assert known == pytest.approx(3 / 7)


def test_limits_are_shown_with_their_source() -> None:
    """An engine that is not full yet, or not ready, has learned limits all the same."""
    rows = page(
        [engine("m-0", Role.MIXED, "a")],
        [
            EngineCapacity(
                "m-0",
                None,
                PrefillLimit(20_000.0, LimitConfidence.ONE),
                DecodeLimit(None, LimitConfidence.UNREACHABLE),
                CapacitySource.STEPS,
            )
        ],
    )

    assert rows["disagg_engine_prefill_knee_tokens_per_second", "m-0"] == 20_000.0
    assert ("disagg_engine_prefill_knee_tokens", "m-0") not in rows
    assert ("disagg_engine_decode_target_batch", "m-0") not in rows
    info = "disagg_engine_capacity_info"
    assert rows[info, "m-0", "prefill", "steps", "one_side"] == 1
    assert rows[info, "m-0", "decode", "steps", "unreachable"] == 1


def test_a_models_operations_are_relative_to_its_gpus_peak() -> None:
    rows = page(
        [engine("d-0", Role.DECODE, "a", "b")],
        [EngineCapacity("d-0", 0.5, flops_per_second=197.88e12, bytes_per_second=3.35e12)],
    )

    assert rows["disagg_engine_peak_flops_per_second", "d-0"] == 2 * 989.4e12
    assert rows["disagg_engine_model_flops_ratio", "d-0", "decode"] == pytest.approx(0.1)
    assert rows["disagg_engine_peak_bytes_per_second", "d-0"] == 2 * 3.35e12
    assert rows["disagg_engine_model_bandwidth_ratio", "d-0", "decode"] == pytest.approx(0.5)


def test_without_a_known_peak_of_all_its_gpus_there_is_no_ratio() -> None:
    """A MIG slice of the same name has another part of operations than of bandwidth."""
    rows = page(
        [engine("d-0", Role.DECODE, "a", "b")],
        [EngineCapacity("d-0", 0.5, flops_per_second=1e12, bytes_per_second=1e12)],
        b=3 / 7,
    )

    assert not [row for row in rows if "_peak_" in row[0] or "_model_" in row[0]]
