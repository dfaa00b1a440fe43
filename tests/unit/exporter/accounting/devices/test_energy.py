"""Energy by phase (docs/accounting.md, A10): tables of records and readings in, joules out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.devices.energy import LONGEST_BUFFER, CommittedTime, EnergyLedger
from disagg_exporter.accounting.intervals.intervals import Intervals
from disagg_exporter.accounting.intervals.timeline import CODES, WorkShares
from disagg_exporter.model import (
    SLICE_NS_PER_GPU_SECOND,
    Cell,
    DeviceReading,
    EngineState,
    Reason,
    Role,
    Use,
)
from support.accounting import NodeAccounting, StepReporter, ns
from support.plain_energy import PlainEnergyLedger
from support.plain_timeline import DECODE, DUMMY, PREFILL

# Tables


def test_each_use_has_the_energy_of_its_own_time() -> None:
    """600 W in a prefill of 2 s, 100 W for the other 18 s."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.PREFILL)
    accounting.power(0, 8, 100)
    accounting.power(8, 10, 600)
    accounting.power(10, 25, 100)
    accounting.step(reporter, reporter.prefill(10, 2))
    accounting.beat(reporter, 26)
    accounting.advance(26)

    assert accounting.watermark() == 20
    assert accounting.joules() == {"prefill": 1200, "idle": 1800}


def test_the_energy_of_a_mixed_step_is_divided_like_its_time() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    accounting.power(0, 20, 400)
    accounting.step(
        reporter, reporter.step(10, 10, context_requests=1, context_tokens=75, generation_tokens=25)
    )
    accounting.beat(reporter, 16)
    accounting.advance(16)

    assert accounting.joules() == {"prefill": 3000, "decode": 1000}


def test_in_a_mixed_interval_idle_time_has_the_baseline_and_work_the_rest() -> None:
    """A step of 0.5 s in an interval of 1 s that took 350 J, at a baseline of 100 W."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.tell(0, energy_joules=0, power_watts=100)
    accounting.tell(1, energy_joules=100, power_watts=100)
    accounting.tell(2, energy_joules=450, power_watts=600)
    accounting.step(reporter, reporter.decode(2, 0.5))
    accounting.beat(reporter, 8)
    accounting.advance(8)

    assert accounting.joules() == {"decode": 300, "idle": 150}


def test_without_a_baseline_idle_time_has_its_share() -> None:
    """The device was never observed idle."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.tell(0, energy_joules=0, power_watts=600)
    accounting.tell(1, energy_joules=350, power_watts=600)
    accounting.step(reporter, reporter.decode(1, 0.5))
    accounting.beat(reporter, 8)
    accounting.advance(8)

    assert accounting.joules() == {"decode": 175, "idle": 175}


def test_idle_time_never_has_more_than_its_share() -> None:
    """A driver's total that stood still for an interval must not starve the work in it."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.tell(0, energy_joules=0, power_watts=100)
    accounting.tell(1, energy_joules=100, power_watts=100)
    accounting.tell(2, energy_joules=120, power_watts=100)
    accounting.step(reporter, reporter.decode(2, 0.5))
    accounting.beat(reporter, 8)
    accounting.advance(8)

    assert accounting.joules() == {"decode": 10, "idle": 110}


def test_engines_that_share_a_device_share_its_energy() -> None:
    accounting, prefill, decode = NodeAccounting(), StepReporter("p"), StepReporter("d", pid=2)
    accounting.engine("p", Role.PREFILL)
    accounting.engine("d", Role.DECODE)
    accounting.power(0, 4, 500)
    accounting.step(prefill, prefill.prefill(4, 2))
    accounting.step(decode, decode.decode(4, 4))
    accounting.beat(prefill, 10)
    accounting.beat(decode, 10)
    accounting.advance(10)

    assert accounting.joules() == {"prefill": 500, "decode": 1500}


def test_energy_follows_the_role_and_the_model_of_its_time() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.PREFILL, model="old")
    accounting.beat(reporter, 0)
    accounting.engine(role=Role.DECODE, since=5, model="new")
    accounting.power(0, 10, 100)
    accounting.step(reporter, reporter.decode(10, 10))
    accounting.beat(reporter, 16)
    accounting.advance(16)

    (account,) = accounting.ledger.device_accounts()

    assert account.microjoules == {
        Cell(Role.PREFILL, Use.DECODE, model_name="old"): 500_000_000,
        Cell(Role.DECODE, Use.DECODE, model_name="new"): 500_000_000,
    }


def test_activity_of_a_foreign_process_has_the_energy_above_the_baseline() -> None:
    """600 W for 2 s of a block of 5 s, in which 100 W is idle; when is not known."""
    accounting = NodeAccounting()
    joules = 0
    for t in range(26):
        busy = 10 < t <= 12
        joules += 600 if busy else 100
        accounting.tell(
            t, busy_ratio=float(busy), energy_joules=joules, power_watts=100 + 500 * busy
        )
    accounting.advance(25)

    assert accounting.watermark() == 15
    assert accounting.seconds() == {"idle": 13, "unattributed": 2}
    assert accounting.joules() == {"idle": 1300, "unattributed": 1200}


def test_the_energy_of_a_dummy_step_is_unattributed() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.power(0, 4, 200)
    accounting.step(reporter, reporter.step(4, 4, dummy=True))
    accounting.beat(reporter, 10)
    accounting.advance(10)

    assert accounting.joules() == {"unattributed": 800}


def test_late_step_time_takes_the_energy_of_the_idle_time_it_replaces() -> None:
    """A 10 s prefill whose first seconds had been committed as idle (A6)."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.PREFILL)
    accounting.power(0, 50, 300)
    for t in range(20):
        accounting.beat(reporter, t)
        accounting.advance(t)
    accounting.step(reporter, reporter.prefill(20, 10))
    for t in range(21, 46):
        accounting.beat(reporter, t)
        accounting.advance(t)

    assert accounting.seconds() == {"prefill": 10, "idle": 29}
    assert accounting.joules() == {"prefill": 3000, "idle": 8700}


def test_energy_waits_for_the_watermark() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.power(0, 12, 100)
    accounting.step(reporter, reporter.decode(12, 12))
    accounting.advance(12)
    waiting = accounting.joules()
    accounting.beat(reporter, 18)
    accounting.advance(18)

    assert waiting == {"decode": 600}
    assert accounting.joules() == {"decode": 1200}


def test_a_device_that_reports_no_energy_has_none() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.activity(0, 20, 1.0)
    accounting.step(reporter, reporter.decode(10, 10))
    accounting.beat(reporter, 20)
    accounting.advance(20)

    assert accounting.joules() is None


def test_a_total_that_never_changed_is_absent_energy_and_not_zero() -> None:
    accounting = NodeAccounting()
    for t in range(10):
        accounting.tell(t, energy_joules=0.0, power_watts=0.0)
    accounting.advance(20)

    (account,) = accounting.ledger.device_accounts()
    assert account.microjoules is None
    assert account.metered_slice_ns == {}


def test_metered_time_is_the_time_between_energy_readings() -> None:
    """Of 20 s of which 10 are decode, readings cover 12, all of the decode among them."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.power(4, 16, 100)
    accounting.step(reporter, reporter.decode(15, 10))
    accounting.beat(reporter, 26)
    accounting.advance(26)
    after = accounting.successor(26, 30)

    for each in (accounting, after):
        (account,) = each.ledger.device_accounts()
        seconds = {
            c.use: ns / SLICE_NS_PER_GPU_SECOND for c, ns in account.metered_slice_ns.items()
        }
        assert seconds == {Use.DECODE: pytest.approx(10), Use.IDLE: pytest.approx(2)}


def test_a_total_that_falls_is_a_reset_and_subtracts_nothing() -> None:
    accounting = NodeAccounting()
    for t, joules in ((0, 1000), (1, 1100), (2, 5), (3, 105)):
        accounting.tell(t, energy_joules=joules)
    accounting.advance(20)

    assert accounting.joules() == {"unobserved": 200}


def test_an_implausible_leap_of_the_total_is_ignored() -> None:
    accounting = NodeAccounting()
    accounting.tell(0, energy_joules=0)
    accounting.tell(1, energy_joules=100)
    accounting.tell(2, energy_joules=1e300)
    accounting.tell(3, energy_joules=1e300)
    accounting.tell(4, energy_joules=100)
    accounting.tell(5, energy_joules=150)
    accounting.advance(20)

    assert accounting.joules() == {"unobserved": 150}


def test_a_total_updated_less_often_than_read_covers_the_time_since_its_last_change() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    for tick in range(31):
        half_seconds = tick // 5
        joules = 50 * half_seconds + 250 * min(max(half_seconds - 2, 0), 2)
        accounting.tell(tick / 10, energy_joules=joules, power_watts=100)
    accounting.step(reporter, reporter.decode(2, 1))
    accounting.beat(reporter, 9)
    accounting.advance(9)

    assert accounting.joules() == {"decode": 600, "idle": 200}


def test_energy_used_over_a_gap_in_the_readings_is_not_lost() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.tell(0, energy_joules=0)
    accounting.tell(10, energy_joules=4000)
    accounting.step(reporter, reporter.decode(10, 5))
    accounting.beat(reporter, 16)
    accounting.advance(16)

    assert accounting.joules() == {"decode": 2000, "idle": 2000}


def test_a_slow_counters_interval_has_the_uses_that_were_committed_before_it_moved() -> None:
    """As a dcgm-exporter's, which collects every 30 s; the watermark lags by 6 s."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    for second in range(42):
        accounting.tell(second, energy_joules=9000 * (second // 30))
        if 1 <= second <= 20:
            accounting.step(reporter, reporter.decode(second, 1))
        accounting.beat(reporter, second)
        accounting.advance(second)

    assert accounting.joules() == {"decode": 6000, "idle": 3000}


def test_the_watts_of_a_slow_counters_device_are_those_of_its_uses() -> None:
    """Busy at 600 W for 5 to 23 of each 30 s, and idle at 100 W."""
    energy, microjoules = EnergyLedger(), 0
    _read(energy, 0, 0, 100)
    for turn in range(120):
        start_ns, works_ns = ns(30 * turn), ns(5 + turn * 7 % 19)
        energy.commit(_spent(start_ns, [(works_ns, (("a", DECODE),)), (ns(24) - works_ns, ())]))
        microjoules += (works_ns * 600 + (ns(30) - works_ns) * 100) // 1000
        _read(energy, start_ns + ns(30), microjoules, 100)
        energy.commit(_spent(start_ns + ns(24), [(ns(6), ())]))

    watts = energy.power.by_use()
    assert watts[Use.DECODE] == pytest.approx(600, rel=0.03)
    assert watts[Use.IDLE] == pytest.approx(100, rel=0.1)


def test_work_before_the_first_reading_of_energy_has_none() -> None:
    """An engine is busy when its device first reports energy, above the watermark."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.step(reporter, reporter.decode(9, 8))
    accounting.power(10, 20, 100)
    accounting.advance(14)
    accounting.beat(reporter, 26)
    accounting.advance(26)

    assert accounting.joules() == {"idle": 1000}


def test_power_that_is_nan_is_not_used_as_baseline() -> None:
    energy = EnergyLedger()
    _read(energy, 0, 0)
    _read(energy, 100, 70, float("nan"))
    _read(energy, 200, 140, 1.0)
    energy.commit(
        CommittedTime(_slices(0, [(200, (("a", DECODE),))]), Role.DECODE, {"a": ("m", "")}, {})
    )

    assert energy.microjoules == {Cell(Role.DECODE, Use.DECODE, model_name="m"): 140}


def test_power_of_0_watts_is_not_used_as_baseline() -> None:
    """Idle time would have no energy from then on. Here it took 100 J a second."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    for second, (joules, watts) in enumerate([(0, 100), (100, 100), (200, 0), (550, 600)]):
        accounting.tell(second, energy_joules=joules, power_watts=watts)
    accounting.step(reporter, reporter.decode(3, 0.5))
    accounting.beat(reporter, 9)
    accounting.advance(9)

    assert accounting.joules() == {"decode": 300, "idle": 250}


# Properties


def _read(energy: EnergyLedger, t_ns: int, microjoules: int, watts: float | None = None) -> None:
    energy.read(DeviceReading("g", t_ns, energy_joules=microjoules / 1e6, power_watts=watts), 0)


WORKS = st.one_of(
    st.sampled_from([PREFILL, DECODE, DUMMY]),
    st.builds(WorkShares, st.floats(0, 1), st.floats(0, 1)),
)
HOLDERS = st.lists(st.tuples(st.sampled_from("ab"), WORKS), max_size=3).map(tuple)
PARTS = st.dictionaries(
    st.sampled_from([Cell(Role.MIXED, use) for use in Use]),
    st.integers(1, 10**10),
    min_size=1,
).map(Counter)


def _slices(
    start_ns: int, pieces: list[tuple[int, tuple[tuple[str, WorkShares], ...]]]
) -> Intervals:
    """Slices of these lengths, each with its holders; without a request where there are none."""
    edges = np.cumsum([start_ns, *(length_ns for length_ns, _ in pieces)])
    works = [[dict(holders).get(name) for _, holders in pieces] for name in "ab"]
    shares = [[work or DECODE for work in lane] for lane in works]
    return Intervals(
        edges,
        ("a", "b"),
        np.array([[work is not None for work in lane] for lane in works]),
        np.array([[work.prefill_share for work in lane] for lane in shares]),
        np.array([[work.dummy_share for work in lane] for lane in shares]),
        np.array([CODES[Reason.NONE if h else Reason.NO_REQUEST] for _, h in pieces]),
    )


def _spent(
    start_ns: int, pieces: list[tuple[int, tuple[tuple[str, WorkShares], ...]]]
) -> CommittedTime:
    """The same as committed time of a decode engine."""
    idle = {Reason.NO_REQUEST: Counter({Cell(Role.DECODE, Use.IDLE): 1})}
    return CommittedTime(_slices(start_ns, pieces), Role.DECODE, {"a": ("m", "")}, idle)


@given(
    st.lists(st.tuples(st.integers(1, 10**10), HOLDERS), min_size=1, max_size=12),
    st.lists(
        st.tuples(st.integers(1, 10**10), st.integers(0, 10**12), st.none() | st.floats(0, 1500)),
        max_size=12,
    ),
    st.integers(1, 4),
    PARTS,
)
def test_the_parts_of_every_interval_sum_to_the_reported_energy(
    pieces: list[tuple[int, Any]],
    told: list[tuple[int, int, float | None]],
    commits: int,
    parts: Counter[Cell],
) -> None:
    """To the microjoule, wherever slices, intervals and commits begin and end."""
    energy, plain, t_ns, total = EnergyLedger(), PlainEnergyLedger(), 0, 0
    _read(energy, 0, 0)
    _read(plain, 0, 0)
    ends = []
    for length_ns, microjoules, watts in told:
        t_ns, total = t_ns + length_ns, total + microjoules
        _read(energy, t_ns, total, watts)
        _read(plain, t_ns, total, watts)
        ends.append((t_ns, total))
    start_ns = 0
    owners = {"a": ("m", ""), "b": ("n", "")}
    for first in range(0, len(pieces), commits):
        done = _slices(start_ns, pieces[first : first + commits])
        start_ns = int(done.edges_ns[-1])
        spent = CommittedTime(done, Role.MIXED, owners, {Reason.NO_REQUEST: parts})
        energy.commit(spent)
        plain.commit(spent)

        committed = [(end_ns, total) for end_ns, total in ends if end_ns <= start_ns]
        moved = [end_ns for end_ns, total in committed if total]
        microjoules = energy.microjoules or {}
        assert sum(microjoules.values()) == (committed[-1][1] if committed else 0)
        assert min(microjoules.values(), default=0) >= 0
        # A part is rounded to the microjoule, and a sum before it by the last bit.
        assert dict(microjoules) == pytest.approx(dict(plain.microjoules or {}), abs=2 * len(told))
        assert sum(energy.lengths_ns.values()) <= (committed[-1][0] if committed else 0)
        assert bool(energy.lengths_ns.total()) == bool(moved)
        assert energy.baseline_watts == plain.baseline_watts
        assert energy.waiting == plain.waiting


def test_a_long_wait_for_the_watermark_bounds_the_buffer_and_loses_nothing() -> None:
    energy = EnergyLedger()
    count = LONGEST_BUFFER * 5 + 1
    for tick in range(count + 1):
        _read(energy, tick * 100, tick * 7)
        assert energy.waiting <= LONGEST_BUFFER

    everything = _slices(0, [(count * 100, (("a", DECODE),))])
    energy.commit(CommittedTime(everything, Role.DECODE, {"a": ("m", "")}, {}))

    assert energy.microjoules == {Cell(Role.DECODE, Use.DECODE, model_name="m"): count * 7}
    assert energy.waiting == 0


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("step"),
            st.sampled_from("ab"),
            st.floats(0, 9),
            st.integers(0, 9),
            st.booleans(),
        ),
        st.tuples(st.just("beat"), st.sampled_from("ab")),
        st.tuples(st.just("state"), st.sampled_from("ab"), st.sampled_from(list(EngineState))),
        st.tuples(st.just("tell"), st.integers(-50, 900), st.none() | st.floats(0, 1)),
        st.tuples(st.just("wait"), st.floats(0.01, 9)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_a_devices_energy_is_what_it_reported_up_to_its_watermark(
    events: list[tuple[Any, ...]],
) -> None:
    """Through the ledger: any history of steps, states and readings; and it never falls."""
    accounting, now, total, last = NodeAccounting(), 1.0, 0, 0
    tellers = {name: StepReporter(name, pid=i + 1) for i, name in enumerate("ab")}
    told: list[tuple[int, int]] = []
    before: dict[Cell, int] = {}
    for name in tellers:
        accounting.engine(name, Role.MIXED)
    accounting.tell(0, energy_joules=0)
    for event in events:
        match event:
            case ("step", name, elapsed, context, generates):
                reporter = tellers[name]
                step = reporter.step(
                    now, elapsed, context_tokens=context, generation_tokens=int(generates)
                )
                accounting.step(reporter, step, now)
            case ("beat", name):
                accounting.beat(tellers[name], now)
            case ("state", name, state):
                accounting.engine(name, Role.DECODE, state=state, since=now)
            case ("tell", joules, ratio):
                now += 0.1
                total = max(total + joules, 0)
                if total >= last and ns(now) > ns(accounting.watermark()):
                    told.append((ns(now), total - last))
                last = total
                accounting.tell(now, energy_joules=float(total), busy_ratio=ratio)
            case ("wait", seconds):
                now += seconds
                accounting.advance(now)
        (account,) = accounting.ledger.device_accounts()
        microjoules = account.microjoules or {}
        committed = sum(joules for end_ns, joules in told if end_ns <= account.watermark_ns)
        assert sum(microjoules.values()) == committed * 1_000_000
        assert all(microjoules[cell] >= told for cell, told in before.items())
        before = dict(microjoules)
