from __future__ import annotations

import pytest

from disagg_cluster.simulator.engine.hardware import B200, H100, LLAMA_8B
from disagg_cluster.simulator.engine.roofline import Price
from disagg_cluster.simulator.engine_faults import Crash, Stuck
from disagg_cluster.simulator.gpu_faults import Throttled
from disagg_cluster.simulator.gpus import GpuGroup, watts
from disagg_cluster.simulator.load import Constant, Mix
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.model import DeviceReading, Direction, Throttle
from support.simulations import SimulationEvents, StoppedLoad, alone, listen, pair

SECOND = 10**9
HARD = Price(1.0, compute_ratio=0.6, memory_ratio=0.2)
LOAD = StoppedLoad(Constant(Mix(3, 1500, 60)), 20)


def of(events: SimulationEvents, gpu: str) -> list[DeviceReading]:
    return [r for sweep in events.sweeps for r in sweep.readings if r.gpu.endswith(gpu)]


def test_activity_and_power_are_means_since_the_last_reading() -> None:
    group = GpuGroup(H100, ["a"], 0)
    group.work(SECOND // 4, HARD)

    (first,) = group.read(SECOND, 0, HARD)
    (second,) = group.read(2 * SECOND, SECOND // 2, HARD)

    assert (first.busy_ratio, second.busy_ratio) == (0.25, 0.5)
    busy = watts(H100, HARD)
    assert first.power_watts == pytest.approx(70 + (busy - 70) / 4)
    assert second.power_watts == pytest.approx(70 + (busy - 70) / 2)
    assert second.energy_joules == pytest.approx(2 * 70 + (busy - 70) * 0.75)


def test_a_gpu_at_rest_draws_its_idle_power_at_its_idle_clock() -> None:
    (reading,) = GpuGroup(H100, ["a"], 0).read(SECOND, 0, HARD)

    assert (reading.busy_ratio, reading.power_watts) == (0.0, 70.0)
    assert reading.sm_clock_hertz == H100.idle_clock_hertz
    assert (reading.memory_used_bytes, reading.pids) == (0, ())


def test_prefill_draws_more_than_decode_and_neither_more_than_the_limit() -> None:
    prefill, decode = Price(1, 0.64, 0.1), Price(1, 0.05, 0.8)

    assert 0.9 * 700 > watts(H100, prefill) > watts(H100, decode) > 0.5 * 700
    assert watts(H100, Price(1, 1.0, 1.0)) == 700


@pytest.mark.parametrize(
    ("compute_ratio", "memory_ratio", "measured_ratio"),
    [(0.66, 0.19, 0.97), (0.12, 0.71, 0.69), (0.01, 0.54, 0.48)],
    ids=["products_of_prompts", "products_of_writing", "attention_of_writing"],
)
def test_power_is_about_what_was_measured(
    compute_ratio: float, memory_ratio: float, measured_ratio: float
) -> None:
    """Medians of 18,992 kernels on a B200 (aiconfigurator, b200-vllm-0.24.0-power, Apache-2.0)."""
    price = Price(1.0, compute_ratio, memory_ratio)

    assert watts(B200, price) / B200.max_watts == pytest.approx(measured_ratio, abs=0.07)


def test_the_same_seconds_take_more_joules_in_prefill_than_in_decode() -> None:
    simulation = Simulation(pair(), LOAD, seed=2)
    events = listen(simulation, 60)

    watts_busy = []
    for gpu, engine in (("0000", "prefill-0"), ("0001", "decode-0")):
        joules = (of(events, gpu)[-1].energy_joules or 0) - H100.idle_watts * 60
        watts_busy.append(joules / simulation.spent_seconds(engine))
    assert watts_busy[0] > 1.3 * watts_busy[1]


def test_prefill_shows_in_the_tensor_units_and_decode_in_the_memory() -> None:
    events = listen(Simulation(pair(), LOAD, seed=2), 20)

    for gpu, more, less in (
        ("0000", "tensor_ratio", "dram_ratio"),
        ("0001", "dram_ratio", "tensor_ratio"),
    ):
        busy = [r for r in of(events, gpu) if r.busy_ratio]
        assert sum(getattr(r, more) for r in busy) > 2 * sum(getattr(r, less) for r in busy)
        assert all(r.graphics_ratio == r.sm_ratio == r.busy_ratio for r in busy)
        assert all(getattr(r, more) < r.busy_ratio for r in busy)


def test_readings_integrate_to_what_the_steps_held() -> None:
    simulation = Simulation(pair(2, 1, gpus_each=2), LOAD, seed=2)
    events = listen(simulation, 60)

    assert len(events.sweeps) == 600
    assert [len(sweep.readings) for sweep in events.sweeps[:2]] == [6, 6]
    for name, server in simulation.servers.items():
        for gpu in server.spec.gpus:
            busy = sum((reading.busy_ratio or 0) * 0.1 for reading in of(events, gpu))
            assert busy == pytest.approx(simulation.spent_seconds(name) / 2, abs=1e-6)


def test_energy_is_the_integral_of_power() -> None:
    events = listen(Simulation(pair(), LOAD, seed=2), 60)
    readings = of(events, "0000")

    joules = sum(reading.power_watts or 0 for reading in readings) * 0.1
    assert readings[-1].energy_joules == pytest.approx(joules)


def test_a_throttled_gpu_shows_its_clock_and_slows_its_whole_group() -> None:
    cluster = pair(gpus_each=2)
    hot = cluster.engines[0].gpus[1]
    faults = [Throttled(0.0, 60.0, hot, clock_ratio=0.5)]
    well = Simulation(cluster, LOAD, seed=2)
    ill = Simulation(cluster, LOAD, seed=2, faults=faults)
    listen(well, 60)
    events = listen(ill, 60)

    assert ill.spent_seconds("prefill-0") > 1.5 * well.spent_seconds("prefill-0")
    assert ill.spent_seconds("decode-0") == pytest.approx(well.spent_seconds("decode-0"), rel=0.05)
    clocks = [
        max(r.sm_clock_hertz or 0 for r in of(events, gpu)) for gpu in cluster.engines[0].gpus
    ]
    assert clocks == [H100.max_clock_hertz, H100.max_clock_hertz / 2]
    assert of(events, cluster.engines[0].gpus[0])[5].throttles == ()
    assert of(events, hot)[5].throttles == (Throttle.THERMAL,)


def test_throttling_ends() -> None:
    cluster = alone()
    faults = [Throttled(5.0, 5.0, "GPU-0", clock_ratio=0.3)]
    events = listen(Simulation(cluster, LOAD, seed=2, faults=faults), 20)

    top = {r.t_ns // SECOND: r.sm_clock_hertz for r in of(events, "GPU-0") if r.busy_ratio}
    assert top[4] == top[15] == H100.max_clock_hertz
    assert top[7] == pytest.approx(0.3 * H100.max_clock_hertz)


def test_a_dead_engine_leaves_its_gpus_empty_and_at_rest() -> None:
    faults = [Crash(10.0, "mixed-0", restart_after_seconds=None)]
    events = listen(Simulation(alone(), LOAD, seed=2, faults=faults), 20)

    before = next(r for r in of(events, "GPU-0") if r.t_ns > 9 * SECOND)
    after = of(events, "GPU-0")[-1]
    assert (before.pids, after.pids) == ((1000,), ())
    assert (before.memory_used_bytes, after.memory_used_bytes) == (72 * 10**9, 0)
    assert (after.busy_ratio, after.power_watts) == (0.0, 70.0)


def test_an_engine_stuck_in_a_step_looks_busy() -> None:
    faults = [Stuck(10.0, 5.0, "decode-0")]
    never_at_rest = Constant(Mix(3, 1500, 400))
    events = listen(Simulation(pair(), never_at_rest, seed=2, faults=faults), 20)

    stuck = [r for r in of(events, "0001") if 11 * SECOND < r.t_ns < 15 * SECOND]
    assert {r.busy_ratio for r in stuck} == {1.0}


def test_kv_is_sent_by_the_gpus_of_prefill_engines_and_received_by_those_of_decode() -> None:
    events = listen(Simulation(pair(gpus_each=2), LOAD), 30)

    prefill, decode = (
        {each.direction: each.bytes for each in of(events, gpu)[-1].traffic}
        for gpu in ("0000", "0002")
    )
    tokens = sum(ended.request.prompt_tokens for ended in events.requests)
    size_bytes = tokens * LLAMA_8B.kv_bytes_per_token
    assert prefill[Direction.SENT] == pytest.approx(size_bytes / 2, rel=0.02)
    assert decode[Direction.RECEIVED] == prefill[Direction.SENT]
    assert prefill[Direction.RECEIVED] == decode[Direction.SENT] == 0


def test_a_gpu_is_warmer_at_higher_power() -> None:
    group = GpuGroup(H100, ["a"], 0)
    (rest,) = group.read(SECOND, 0, HARD)
    (work,) = group.read(2 * SECOND, SECOND, HARD)

    assert rest.temperature_celsius is not None
    assert work.temperature_celsius is not None
    assert 25 < rest.temperature_celsius < 40 < work.temperature_celsius < 75
    assert work.power_limit_watts == H100.max_watts
