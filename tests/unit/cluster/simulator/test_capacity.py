"""What is learned of simulated engines, compared with the simulator's parameters."""

from __future__ import annotations

import pytest

from disagg_cluster.simulator.engine.roofline import Noise
from disagg_cluster.simulator.load import Constant, Lengths, Mix
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.model import EngineCapacity, EngineState, EngineStatus, LimitConfidence
from disagg_exporter.steps.messages import ControlMessage, MessageKind
from support.simulations import SECOND_NS, pair

TARGET_SECONDS = 0.050
SECONDS = 90
NOISE = Noise(step_ratio=0.10)


def learned(requests_per_second: float, output_tokens: float) -> dict[str, EngineCapacity]:
    """Return what is learned of an 8B prefill and an 8B decode engine on an H100 each, by name."""
    simulation = Simulation(
        pair(noise=NOISE),
        Constant(Mix(requests_per_second, 1155, output_tokens)),
        lengths=Lengths(prompt_spread=0.8),
        seed=1,
    )
    statuses = [
        EngineStatus(s.name, s.role, "vllm", "", "8b", s.gpus, EngineState.READY, True, "", "")
        for s in simulation.cluster.engines
    ]
    capacity_model, next_ns = CapacityModel(TARGET_SECONDS), SECOND_NS
    capacity_model.advance(statuses, 0)
    for t_ns, event in simulation.events(SECONDS * SECOND_NS):
        while next_ns <= t_ns:
            capacity_model.advance(statuses, next_ns)
            next_ns += SECOND_NS
        if isinstance(event, ControlMessage) and event.step is not None:
            if event.kind is MessageKind.STEP:
                capacity_model.step(event.key, event.step, overlapped=False)
            else:
                capacity_model.heartbeat(event.key, event.step)
    capacity_model.advance(statuses, SECONDS * SECOND_NS)
    return {capacity.engine: capacity for capacity in capacity_model.capacities(statuses)}


def test_a_saturated_prefill_engine_is_full() -> None:
    """Of 60,000 prompt tokens a second it computes 45,000: nine tenths are the knee's."""
    prefill = learned(52, 2)["prefill-0"]

    assert prefill.used_ratio == pytest.approx(1.1, abs=0.05)
    assert prefill.prefill is not None
    assert prefill.prefill.tokens_per_second == pytest.approx(40_600, rel=0.05)


def test_a_half_used_prefill_engine_is_half_full_and_has_a_learned_knee() -> None:
    """By the table of an 8B on an H100, steps of 649 tokens reach nine tenths of the best rate."""
    prefill = learned(17, 2)["prefill-0"]

    assert prefill.used_ratio == pytest.approx(0.5, abs=0.08)
    assert prefill.prefill is not None
    assert prefill.prefill.confidence is LimitConfidence.BOTH
    assert prefill.prefill.knee_tokens == pytest.approx(649, rel=0.2)


def test_eighteen_of_256_requests_are_a_small_share() -> None:
    """The engine never idles, and uses 7 % of its cache; hundreds would meet the target."""
    decode = learned(6, 400)["decode-0"]

    assert decode.decode is not None
    assert decode.decode.requests is not None
    assert decode.decode.requests > 200
    assert decode.used_ratio is not None
    assert 0.04 < decode.used_ratio < 0.10
