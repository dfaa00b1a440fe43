"""Bar 5 of the attach issue: a hostile pod's steps change nothing but its own engine's numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from disagg_cluster.discovery.pod_steps.admission import (
    MAX_RANKS,
    STREAMS_AT_ONCE,
    AdmissionControl,
)
from disagg_cluster.telemetry.steps.step_feed import ingest_steps
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import (
    Assignment,
    Device,
    DeviceAccount,
    EngineState,
    Role,
    StreamKey,
)
from disagg_exporter.steps.messages import record_runs
from support.accounting import StepReporter, ns

HOSTILE = "hostile"
START = 1_000

U32 = st.sampled_from([0, 1, 2, 1000, 2**31, 2**32 - 1])
U64 = st.sampled_from([0, 1, 10**6, 10**9, 10**12, 2**53, 2**63, 2**64 - 1])
RATIO = st.sampled_from([0.0, 0.5, 1.0, -1.0, float("nan"), float("inf")])


@st.composite
def records(draw: st.DrawFn) -> wire.Record:
    """Any valid record on the wire; times are an offset from now."""
    ints32 = [draw(U32) for _ in range(11)]
    return wire.Record(
        wire.VERSION,
        draw(st.sampled_from([wire.HELLO, wire.STEP, wire.HEARTBEAT])),
        draw(st.integers(0, 15)),
        draw(U32),
        draw(st.sampled_from([0, 1, MAX_RANKS - 1, MAX_RANKS, 2**32 - 1])),
        0,
        draw(U64),
        draw(U64),
        draw(st.sampled_from([0, -1, 10**9, -(10**9), -ns(700), ns(700), 2**62 - ns(5000)])),
        draw(U64),
        *ints32,
        draw(RATIO),
        draw(U32),
        *(draw(U64) for _ in range(11)),
    )


def node(gate: AdmissionControl | None, told: list[list[wire.Record]]) -> Ledger:
    """A node of two engines over some seconds; the hostile one sends what it likes, if at all."""
    ledger, victim = Ledger(), StepReporter("victim")
    for gpu, engine, role in (("A", "victim", Role.DECODE), ("B", HOSTILE, Role.PREFILL)):
        ledger.add_device(Device(gpu, 0, "H100", gpu), ns(START))
        assignment = Assignment(engine, role, (gpu,), EngineState.READY, ns(START), model_name="m")
        ledger.assign(assignment)
    for second in range(20):
        now_ns = ns(START + second)
        for tenth in range(10):
            at = START + second + tenth / 10
            ledger.step(victim.key, victim.decode(at, 0.05, running=1), now_ns=ns(at))
        if gate is not None and second < len(told):
            for record in told[second]:
                _hear(ledger, gate, record._replace(t_ns=now_ns + record.t_ns), now_ns)
        ledger.advance(now_ns)
    return ledger


def _hear(ledger: Ledger, gate: AdmissionControl, record: wire.Record, now_ns: int) -> None:
    runs, _ = record_runs([wire.encode(record)])
    for run in runs:
        key = StreamKey(HOSTILE, record.pid, run.incarnation, run.engine_index)
        admitted = gate.admitted(run.event(key), now_ns)
        if admitted is not None:
            ingest_steps(admitted, ledger, CapacityModel(1.0), now_ns)


def of_victim(ledger: Ledger) -> dict[str, Any]:
    """Everything on the page about the victim."""
    now_ns = ns(START + 20)
    (account,) = [a for a in ledger.engine_accounts(now_ns) if a.engine == "victim"]
    gpus, _ = ledger.fast_gauges(now_ns)
    return {
        "device": _comparable(next(a for a in ledger.device_accounts() if a.device.gpu == "A")),
        "engine": account,
        "busy": [each for each in gpus if each.role is Role.DECODE],
        "tokens": [each for each in ledger.token_accounts() if each.role is Role.DECODE],
    }


def _comparable(account: DeviceAccount) -> DeviceAccount:
    return replace(account, slice_ns={c: s for c, s in account.slice_ns.items() if s})


QUIET = of_victim(node(None, []))


def a_record(**fields: int) -> wire.Record:
    blank = [wire.VERSION, wire.STEP, *[0] * (len(wire.Record._fields) - 2)]
    return wire.Record._make(blank)._replace(**fields)


# A step that never ends would widen the window of all fast gauges.
ENDLESS = a_record(elapsed_ns=ns(599), context_requests=1, context_tokens=1, running=1)


@example([[]] * 19 + [[ENDLESS]])
@given(st.lists(st.lists(records(), max_size=8), max_size=20))
def test_a_pods_reports_never_change_its_neighbours_numbers(
    told: list[list[wire.Record]],
) -> None:
    assert of_victim(node(AdmissionControl(ns(START)), told)) == QUIET


def test_a_flood_of_new_streams_takes_bounded_memory() -> None:
    gate = AdmissionControl(ns(START))
    flood = [
        a_record(engine_index=at % 4096, incarnation=at, sequence=1, elapsed_ns=1000)
        for at in range(20_000)
    ]

    ledger = node(gate, [flood[at : at + 1000] for at in range(0, 20_000, 1000)])

    assert 20_000 - gate.refused <= STREAMS_AT_ONCE + 1
    assert of_victim(ledger) == QUIET
