from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.devices.simulated import (
    IDLE_WATTS,
    MEMORY_TOTAL_BYTES,
    SimDevices,
    SimState,
    SimStateError,
    SimTrack,
    celsius,
    follow,
    parse_state,
    state_path,
    write_state,
)
from disagg_exporter.model import Device, DeviceReading

MS = 1_000_000
SECOND = 1_000_000_000
START = SimState(
    t_ns=100 * SECOND,
    busy_ns=7 * SECOND,
    memory_used_bytes=5_000,
    power_watts=650.5,
    energy_joules=900.0,
    pid=31,
    sm_ns=4 * SECOND,
    tensor_ns=3 * SECOND,
    dram_ns=2 * SECOND,
)


def later(state: SimState, milliseconds: int, *, busy: int, joules: float = 0.0) -> SimState:
    return replace(
        state,
        t_ns=state.t_ns + milliseconds * MS,
        busy_ns=state.busy_ns + busy * MS,
        sm_ns=state.sm_ns + busy * MS * 3 // 4,
        tensor_ns=state.tensor_ns + busy * MS // 2,
        dram_ns=state.dram_ns + busy * MS // 4,
        energy_joules=state.energy_joules + joules,
    )


@pytest.fixture
def two(tmp_path: Path) -> SimDevices:
    return SimDevices(tmp_path / "devices", 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "devices"


def test_the_devices_are_numbered_and_named_as_simulated(two: SimDevices) -> None:
    assert two.name == "sim"
    assert two.inventory()[1] == Device(
        gpu="GPU-sim-0001",
        index=1,
        gpu_name="Simulated GPU",
        device="sim1",
        memory_total_bytes=MEMORY_TOTAL_BYTES,
    )


def test_an_unused_device_is_idle(two: SimDevices) -> None:
    two.sweep(50 * SECOND)
    sweep = two.sweep(52 * SECOND)

    assert sweep.failures == ()
    assert sweep.readings[0] == DeviceReading(
        gpu="GPU-sim-0000",
        t_ns=52 * SECOND,
        busy_ratio=0.0,
        memory_used_bytes=0,
        memory_total_bytes=MEMORY_TOTAL_BYTES,
        power_watts=IDLE_WATTS,
        energy_joules=2 * IDLE_WATTS,
        pids=(),
        process_memory=(),
        graphics_ratio=0.0,
        sm_ratio=0.0,
        tensor_ratio=0.0,
        dram_ratio=0.0,
        throttles=(),
        temperature_celsius=celsius(IDLE_WATTS),
    )


def test_a_reading_is_what_the_engine_wrote_between_two_versions(
    two: SimDevices, folder: Path
) -> None:
    write_state(folder, 1, START)
    first = two.sweep(START.t_ns)
    write_state(folder, 1, later(START, 250, busy=200, joules=120.5))
    second = two.sweep(START.t_ns + 300 * MS)

    assert first.readings[1].busy_ratio is None
    assert second.readings[1] == DeviceReading(
        gpu="GPU-sim-0001",
        t_ns=START.t_ns + 300 * MS,
        busy_ratio=0.8,
        memory_used_bytes=5_000,
        memory_total_bytes=MEMORY_TOTAL_BYTES,
        power_watts=650.5,
        energy_joules=120.5,
        pids=(31,),
        process_memory=((31, 5000),),
        graphics_ratio=0.8,
        sm_ratio=0.6,
        tensor_ratio=0.4,
        dram_ratio=0.2,
        throttles=(),
        temperature_celsius=celsius(650.5),
    )
    assert second.readings[0].busy_ratio == 0.0


def test_a_file_that_holds_no_state_fails_its_device_alone(two: SimDevices, folder: Path) -> None:
    write_state(folder, 0, START)
    state_path(folder, 1).write_text("something else")

    sweep = two.sweep(START.t_ns)

    assert [reading.gpu for reading in sweep.readings] == ["GPU-sim-0000"]
    assert [failure.gpu for failure in sweep.failures] == ["GPU-sim-0001"]
    assert "something else" in sweep.failures[0].why


def test_a_file_that_cannot_be_read_fails_its_device_alone(two: SimDevices, folder: Path) -> None:
    state_path(folder, 0).mkdir(parents=True)

    sweep = two.sweep(START.t_ns)

    assert [failure.gpu for failure in sweep.failures] == ["GPU-sim-0000"]
    assert len(sweep.readings) == 1


def test_a_written_state_is_read_back_unchanged(folder: Path) -> None:
    write_state(folder, 4, START)

    assert parse_state(state_path(folder, 4).read_text()) == START
    assert [path.name for path in folder.iterdir()] == ["gpu-4"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "disagg-sim-2 1 2 3",
        "disagg-sim-1 31 1 2 3 4 5",
        "disagg-sim-3 31 1 2 3 4 5 6 7 8",
        "disagg-sim-2 31 1 2 3 4 5 6 7 8 9",
        "disagg-sim-2 x 1 2 3 4 5 6 7 8",
    ],
)
def test_invalid_state_text_is_refused(text: str) -> None:
    with pytest.raises(SimStateError):
        parse_state(text)


def begun() -> SimTrack:
    return follow(SimTrack(charged_ns=START.t_ns), START, START.t_ns)


def test_the_activity_holds_until_the_next_version_is_due() -> None:
    second = later(START, 250, busy=100)

    track = follow(begun(), second, second.t_ns)
    held = follow(track, second, second.t_ns + 1000 * MS)
    too_old = follow(held, second, second.t_ns + 1001 * MS)

    assert held.ratios.graphics_ratio == 0.4
    assert too_old.ratios.graphics_ratio is None


def test_a_stale_file_is_an_idle_device_after_three_seconds() -> None:
    in_time = follow(begun(), START, START.t_ns + 3 * SECOND)
    left = follow(in_time, START, START.t_ns + 3 * SECOND + 1)

    assert in_time.state == START
    assert (left.state, left.ratios.graphics_ratio) == (None, 0.0)


def test_a_file_of_an_earlier_boot_is_an_idle_device() -> None:
    track = follow(SimTrack(charged_ns=0), START, 5 * SECOND)

    assert (track.state, track.ratios.graphics_ratio) == (None, 0.0)


def test_a_file_newer_than_the_sweep_is_read() -> None:
    """The sweep is stamped before it reads, so a version may be slightly newer."""
    second = later(START, 250, busy=250)

    assert follow(begun(), second, second.t_ns - 5 * MS).ratios.graphics_ratio == 1.0


@pytest.mark.parametrize(
    "successor",
    [replace(later(START, 250, busy=200), pid=32), replace(later(START, 250, busy=0), busy_ns=0)],
    ids=["another process", "totals that began again"],
)
def test_a_new_process_begins_with_unknown_activity(successor: SimState) -> None:
    track = follow(begun(), successor, successor.t_ns)
    next_one = later(successor, 100, busy=50)

    assert track.ratios.graphics_ratio is None
    assert follow(track, next_one, next_one.t_ns).ratios.graphics_ratio == 0.5


def test_more_busy_time_than_elapsed_gives_a_ratio_of_1() -> None:
    second = later(START, 100, busy=150)

    assert follow(begun(), second, second.t_ns).ratios.graphics_ratio == 1.0


def test_energy_continues_through_idle_time_and_the_next_process() -> None:
    second = later(START, 1000, busy=900, joules=600.0)
    successor = replace(START, t_ns=START.t_ns + 11 * SECOND, energy_joules=3.0, pid=32)

    working = follow(begun(), second, second.t_ns)
    resting = follow(working, None, START.t_ns + 10 * SECOND)
    taken_up = follow(resting, successor, successor.t_ns)
    worked = follow(taken_up, later(successor, 500, busy=1, joules=40.0), successor.t_ns + SECOND)

    assert working.energy_joules == 600.0
    assert resting.energy_joules == 600.0 + 9 * IDLE_WATTS
    assert taken_up.energy_joules == 600.0 + 10 * IDLE_WATTS
    assert worked.energy_joules == 640.0 + 10 * IDLE_WATTS


def test_idle_energy_is_charged_once() -> None:
    """The idle sweep has charged time that a process's first version, read later, precedes."""
    resting = follow(SimTrack(charged_ns=START.t_ns - SECOND), None, START.t_ns + SECOND)
    taken_up = follow(resting, START, START.t_ns + SECOND)
    left = follow(taken_up, None, START.t_ns + 2 * SECOND)

    assert left.energy_joules == 3 * IDLE_WATTS


def test_a_decreasing_energy_subtracts_nothing() -> None:
    second = later(START, 100, busy=50, joules=-10.0)

    assert follow(begun(), second, second.t_ns).energy_joules == 0.0


states = st.none() | st.builds(
    SimState,
    t_ns=st.integers(0, 20_000).map(lambda ms: ms * MS),
    busy_ns=st.integers(0, 20_000).map(lambda ms: ms * MS),
    memory_used_bytes=st.just(1),
    power_watts=st.just(1.0),
    energy_joules=st.floats(0, 1e6),
    pid=st.integers(1, 2),
    sm_ns=st.integers(0, 20_000).map(lambda ms: ms * MS),
)


@given(st.lists(st.tuples(st.integers(0, 2_000), states), max_size=20))
def test_for_any_states_energy_never_falls_and_activity_is_a_ratio(
    looks: list[tuple[int, SimState | None]],
) -> None:
    now_ns = 0
    track = SimTrack(charged_ns=0)
    for passed_ms, state in looks:
        now_ns += passed_ms * MS
        before = track
        track = follow(track, state, now_ns)

        assert track.energy_joules >= before.energy_joules
        for ratio in (track.ratios.graphics_ratio, track.ratios.sm_ratio):
            assert ratio is None or 0.0 <= ratio <= 1.0
