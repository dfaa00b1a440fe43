"""Absurd numbers change only the sending engine's own accounts, and those only forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.timelines.recent_window import RecentWindow
from disagg_exporter.accounting.timelines.step_timeline import StepTimeline
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import EngineState, EngineStatus, Role, StreamKey
from disagg_exporter.steps.messages import StepRecords, record_runs
from disagg_exporter.steps.rows import rows_of
from support.accounting import NodeAccounting, StepReporter, ns
from support.plain_timeline import DECODE

LONG = st.sampled_from([0, 1, 7, 10**9, 2**40, 2**60, 2**62, 2**63, 2**64 - 1])
SHORT = st.sampled_from([0, 0, 1, 3, 2**31, 2**32 - 1])
TIMES = st.sampled_from([-(2**63), -1, 0, ns(1), ns(2.5), ns(4), ns(20), 2**63 - 1])
_SAID = {
    "version": st.just(wire.VERSION),
    "kind": st.sampled_from([wire.STEP] * 6 + [wire.HEARTBEAT]),
    "flags": st.sampled_from([0, wire.OVERLAPPED, wire.DUMMY]),
    "pid": st.just(1),
    "engine_index": st.integers(0, 1),
    "record_bytes": st.just(wire.BYTES),
    "incarnation": st.integers(1, 3),
    "t_ns": TIMES,
    "kv_usage_ratio": st.sampled_from([0.0, 0.5, 3e38]),
}
_LONG = ("sequence", "elapsed_ns", *wire.Record._fields[-11:])
RECORDS = st.builds(
    wire.Record,
    **{name: _SAID.get(name, LONG if name in _LONG else SHORT) for name in wire.Record._fields},  # type: ignore[arg-type] # of each field its own type
)
HERE = EngineStatus(
    engine="e",
    role=Role.MIXED,
    kind="vllm",
    version="",
    model_name="m",
    devices=("g0",),
    state=EngineState.READY,
    up=True,
    source="config",
    confidence="certain",
    page=None,
    pid=1,
    model_size=None,
    serving=None,
)


@given(st.lists(st.tuples(RECORDS, st.sampled_from([0.0, 0.0, 0.5, 8.0])), max_size=30))
def test_any_numbers_of_an_engine_keep_the_accounting_balanced_and_growing(
    records: list[tuple[wire.Record, float]],
) -> None:
    """Invariants a and b, and no exception."""
    accounting, capacity_model, now = NodeAccounting(), CapacityModel(0.05), 5.0
    accounting.engine()
    capacity_model.advance([HERE], ns(now))
    before: Mapping[Any, float] = {}
    for record, later in records:
        runs, _ = record_runs([wire.encode(record)])
        for run in runs:
            key = StreamKey("e", 1, run.incarnation, run.engine_index)
            told, overlapped = run.event(key), bool(run.flags & wire.OVERLAPPED)
            if isinstance(told, StepRecords):
                accounting.ledger.steps(key, told.rows, now_ns=ns(now))
                capacity_model.steps(key, told.rows, overlapped=overlapped)
            elif told.step is not None:
                accounting.ledger.heartbeat(key, told.step, overlapped=overlapped, now_ns=ns(now))
                capacity_model.heartbeat(key, told.step)
        if later:
            now += later
            accounting.advance(now)
            capacity_model.advance([HERE], ns(now))
            accounting.ledger.fast_gauges(ns(now))
            assert accounting.unbalanced() == []
            before = _grown(accounting, now, before)


def test_an_engine_is_counted_on_its_first_1024_streams_only() -> None:
    accounting = NodeAccounting()
    accounting.engine()
    for incarnation in range(2000):
        reporter = StepReporter(incarnation=incarnation, index=incarnation % 1500)
        accounting.step(reporter, reporter.decode(1.0, 0.0))
        accounting.step(reporter, reporter.decode(2.0, 0.001))
    accounting.advance(9.0)

    (account,) = accounting.ledger.engine_accounts(ns(9))
    assert account.reported.steps[wire.GENERATION] == 1024


def test_many_records_of_one_instant_do_not_hold_the_timeline_open() -> None:
    """A record with pending work, and then records stamped at that very moment."""
    timeline, reporter = StepTimeline(0, Rules()), StepReporter()
    timeline.add(reporter.key, reporter.decode(1.0, 0.001, running=1), now_ns=ns(1))
    rows = rows_of([reporter.decode(1.0, 0.0)]).repeat(140_000)
    rows["running"] = 1
    rows["sequence"] += np.arange(len(rows))
    timeline.add(reporter.key, rows, now_ns=ns(8))
    timeline.heartbeat(reporter.key, reporter.beat(20.0), overlapped=False, now_ns=ns(20))

    timeline.advance(ns(20))

    assert timeline.mark_ns == ns(14)


def test_the_recent_window_keeps_a_bounded_number_of_steps() -> None:
    recents, count = RecentWindow(), 2**17
    recents.add_one(ns(600), ns(600), DECODE)
    t_ns = ns(600) + np.arange(count) * 1000
    recents.add(t_ns, np.full(count, 1000), np.zeros(count), np.zeros(count))

    assert len(recents) == count / 2


def _grown(
    accounting: NodeAccounting, now: float, before: Mapping[Any, float]
) -> Mapping[Any, float]:
    values: dict[Any, float] = {}
    for account in accounting.ledger.device_accounts():
        for cell, seconds in account.cells.items():
            values[cell] = seconds
    for engine in accounting.ledger.engine_accounts(ns(now)):
        values["cut"] = engine.cut_seconds
        values["lost"], values["late"] = engine.lost_records, engine.late_records
    for tokens in accounting.ledger.token_accounts():
        values["tokens", tokens.phase] = tokens.tokens
    assert [key for key, value in values.items() if value < before.get(key, 0)] == []
    return values
