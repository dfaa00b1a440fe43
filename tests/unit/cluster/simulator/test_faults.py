from __future__ import annotations

from itertools import pairwise

import pytest

from disagg_cluster.simulator.cluster.spec import Reporting
from disagg_cluster.simulator.engine_faults import Crash, LateRecords, LostRecords, Slow, Stuck
from disagg_cluster.simulator.load import Constant, Mix
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.model import EngineState, Step
from disagg_exporter.steps.messages import MessageKind
from support.simulations import SimulationEvents, StoppedLoad, listen, pair

SECOND = 10**9
LOAD = StoppedLoad(Constant(Mix(3, 1500, 100)), 40)


def events_with(*faults: object, **cluster: object) -> SimulationEvents:
    simulation = Simulation(
        pair(**cluster),  # type: ignore[arg-type]
        LOAD,
        faults=faults,  # type: ignore[arg-type]
        reporting=Reporting(page_seconds=None),
        seed=5,
    )
    return listen(simulation, 60)


def lengths(steps: list[Step], start: float, end: float) -> list[int]:
    return [s.elapsed_ns for s in steps if start * SECOND < s.t_ns < end * SECOND and s.elapsed_ns]


def test_a_slow_engines_steps_are_longer_by_its_factor() -> None:
    well = events_with().steps("decode-0")
    ill = events_with(Slow(10.0, 10.0, "decode-0", factor=3.0)).steps("decode-0")

    assert min(lengths(ill, 10.1, 20)) == pytest.approx(3 * min(lengths(well, 10, 20)), rel=0.02)
    assert min(lengths(ill, 30, 40)) == pytest.approx(min(lengths(well, 30, 40)), rel=0.02)


def test_an_engine_of_two_that_is_slow_has_the_longer_waits() -> None:
    events = events_with(Slow(0.0, 60.0, "decode-0", factor=4.0), decode=2)

    waits: dict[str, list[int]] = {"decode-0": [], "decode-1": []}
    for ended in events.requests:
        waits[ended.decode_engine].append(ended.ended_ns - ended.request.arrived_ns)
    means = {name: sum(some) / len(some) for name, some in waits.items()}
    assert means["decode-0"] > 3 * means["decode-1"]


def test_a_stuck_engine_sends_heartbeats_and_no_steps() -> None:
    events = events_with(Stuck(10.0, 6.0, "decode-0"))

    during = [
        message.kind
        for t_ns, message in events.messages
        if message.key.engine == "decode-0" and 10.1 * SECOND < t_ns < 16 * SECOND
    ]
    assert set(during) == {MessageKind.HEARTBEAT}
    assert len(during) == 5
    assert not any(ended.failed for ended in events.requests)


def test_a_crash_ends_one_stream_and_the_restart_begins_another() -> None:
    events = events_with(Crash(10.0, "decode-0", restart_after_seconds=2.0), start_seconds=3.0)

    states = [
        (a.state, round(a.since_ns / SECOND), a.pids)
        for a in events.assignments
        if a.engine == "decode-0"
    ]
    assert states == [
        (EngineState.READY, 0, (2000,)),
        (EngineState.GONE, 10, (2000,)),
        (EngineState.STARTING, 12, (2001,)),
        (EngineState.READY, 15, (2001,)),
    ]
    messages = [(t, m) for t, m in events.messages if m.key.engine == "decode-0"]
    assert not [t for t, _ in messages if 10 * SECOND < t < 15 * SECOND]
    keys = list(dict.fromkeys(message.key for _, message in messages))
    assert [(key.pid, key.incarnation) for key in keys] == [(2000, 0), (2001, 15 * SECOND)]
    assert events.steps("decode-0")[-1].sequence < len(events.steps("decode-0"))


def test_lost_records_leave_gaps_in_the_sequence_and_are_counted_as_drops() -> None:
    steps = events_with(LostRecords(10.0, 10.0, "decode-0", ratio=0.2)).steps("decode-0")

    gaps = [(one.t_ns, two.sequence - one.sequence - 1) for one, two in pairwise(steps)]
    lost = sum(gap for _, gap in gaps)
    assert lost == steps[-1].totals.drops > 50
    assert all(9.9 * SECOND < t_ns < 20 * SECOND for t_ns, gap in gaps if gap)


def test_late_records_keep_their_order_and_their_own_times() -> None:
    events = events_with(LateRecords(10.0, 10.0, "decode-0", late_seconds=2.5))
    arrived = [(t, m) for t, m in events.messages if m.key.engine == "decode-0"]

    late = {round((t - m.t_ns) / SECOND, 1) for t, m in arrived if 11e9 < m.t_ns < 19e9}
    assert late == {2.5}
    assert [m.t_ns for _, m in arrived] == sorted(m.t_ns for _, m in arrived)
    assert arrived[-1][0] == arrived[-1][1].t_ns


def test_late_records_arrive_when_their_engine_dies() -> None:
    """The daemon drains the socket before it accounts the death."""
    events = events_with(
        LateRecords(5.0, 10.0, "decode-0", late_seconds=3.0),
        Crash(10.0, "decode-0", restart_after_seconds=None),
    )

    arrived = [(t, m.t_ns) for t, m in events.messages if m.key.engine == "decode-0"]
    assert arrived[-1][0] == 10 * SECOND
    assert 9.9 * SECOND < arrived[-1][1] <= 10 * SECOND
