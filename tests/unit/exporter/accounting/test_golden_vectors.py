"""Small tables, records in and seconds out, one or more for each rule of docs/accounting.md."""

from __future__ import annotations

import pytest

from disagg_exporter.accounting import Ledger
from disagg_exporter.devices.source import pseudo_device
from disagg_exporter.model import Assignment, EngineState, Method, Phase, Reason, Role, Use
from disagg_exporter.steps.rows import rows_of
from support.accounting import NodeAccounting, StepReporter, ns


def test_a_step_holds_its_device_from_start_to_end() -> None:
    """A2: one prefill of 2 s, reported at 10 s, and its engine is idle otherwise."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.PREFILL)
    accounting.beat(reporter, 0)
    accounting.step(reporter, reporter.prefill(10, 2))
    for t in range(11, 27):
        accounting.beat(reporter, t)
    accounting.advance(26)

    assert accounting.watermark() == 20
    assert accounting.seconds() == {"prefill": 2, "idle": 18}
    assert accounting.unbalanced() == []


def test_a_tensor_parallel_step_counts_on_every_device() -> None:
    """A2: a TP-4 step of 1 s is 4 GPU-seconds."""
    accounting, reporter = NodeAccounting(gpus=4), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.step(reporter, reporter.decode(5, 1))
    accounting.beat(reporter, 20)
    accounting.advance(20)

    assert [accounting.seconds(g)["decode"] for g in accounting.gpus] == [1, 1, 1, 1]
    assert accounting.engine_seconds(20) == {Phase.PREFILL: 0, Phase.DECODE: 4}


def test_a_burst_of_records_is_packed_backwards_without_loss() -> None:
    """A2: three steps of 1 s reported together at 10 s lie in [7, 10)."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    accounting.beat(reporter, 0)
    for _ in range(3):
        accounting.step(reporter, reporter.decode(10, 1))
    accounting.beat(reporter, 30)
    accounting.advance(30)

    assert accounting.seconds() == {"decode": 3, "idle": 21}
    assert accounting.owed(30) == 0


def test_a_ten_second_prefill_from_idle_is_carried_not_lost() -> None:
    """A6: heartbeats of the idle engine had committed up to 4 s before it was reported at 20 s."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.PREFILL)
    for t in range(20):
        accounting.beat(reporter, t)
        accounting.advance(t)
    accounting.step(reporter, reporter.prefill(20, 10))
    accounting.advance(20)
    assert accounting.watermark() == 14
    assert accounting.seconds() == {"prefill": 1, "idle": 13}
    assert accounting.owed(20) == 0

    for t in range(21, 46):
        accounting.beat(reporter, t)
        accounting.advance(t)

    assert accounting.seconds() == {"prefill": 10, "idle": 29}
    assert accounting.owed(45) == 0
    assert accounting.cut(45) == 0


def test_a_running_engine_holds_the_watermark_despite_its_heartbeats() -> None:
    """A6: a heartbeat does not commit while the last record reported pending work."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.step(reporter, reporter.decode(10, 1, running=1))
    for t in range(11, 31):
        accounting.beat(reporter, t)
        accounting.advance(t)
    assert accounting.watermark() == 4

    accounting.step(reporter, reporter.decode(31, 20))
    accounting.beat(reporter, 50)
    accounting.advance(50)

    assert accounting.seconds() == {"decode": 21, "idle": 23}


def test_a_long_step_holds_the_watermark_no_longer_than_ten_minutes() -> None:
    """A hung engine with a living heartbeat must not hold the accounting open for ever."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.step(reporter, reporter.decode(10, 1, running=1))
    for t in range(11, 640):
        accounting.beat(reporter, t)
    accounting.advance(639)

    assert accounting.watermark() == 633
    assert accounting.seconds() == {"decode": 1, "idle": 9, "unobserved": 623}


def test_debt_beyond_a_minute_is_cut_and_counted() -> None:
    """A2: 100 s of steps reported late owe at most 60 s; the rest is cut and reported."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.beat(reporter, 0)
    for t in range(1, 101):
        accounting.beat(reporter, t)
    accounting.advance(100)
    for _ in range(100):
        accounting.step(reporter, reporter.decode(100, 1))
    accounting.beat(reporter, 101)
    for t in range(102, 300):
        accounting.beat(reporter, t)
        accounting.advance(t)

    assert accounting.seconds()["decode"] == 66
    assert accounting.cut(300) == 34
    assert accounting.unbalanced() == []


def test_engines_on_one_device_share_each_instant() -> None:
    """A3: 2 s of A, of which 1 s together with B: A has 1.5, B has 0.5."""
    accounting, a, b = NodeAccounting(), StepReporter("a", pid=1), StepReporter("b", pid=2)
    accounting.engine("a", Role.PREFILL)
    accounting.engine("b", Role.DECODE)
    accounting.beat(a, 0)
    accounting.beat(b, 0)
    accounting.step(a, a.prefill(10, 2))
    accounting.step(b, b.decode(10, 1))
    accounting.beat(a, 20)
    accounting.beat(b, 20)
    accounting.advance(20)

    assert accounting.seconds() == {"prefill": 1.5, "decode": 0.5, "idle": 12}
    assert accounting.engine_seconds(20, "a")[Phase.PREFILL] == 1.5
    assert accounting.by_role(Role.MIXED)["prefill"] == 1.5


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        pytest.param(
            {"context_requests": 1, "context_tokens": 512}, {"prefill": 1.0}, id="chunk of a prompt"
        ),
        pytest.param(
            {"context_requests": 1, "context_tokens": 64, "computed_tokens": 64},
            {"prefill": 1.0},
            id="the step that ends a prompt",
        ),
        pytest.param(
            {"generation_requests": 2, "generation_tokens": 8},
            {"decode": 1.0},
            id="speculative verification",
        ),
        pytest.param(
            {"context_requests": 2, "context_tokens": 2, "external_tokens": 90},
            {"decode": 1.0},
            id="recompute of transferred requests",
        ),
        pytest.param(
            {
                "context_requests": 1,
                "context_tokens": 1,
                "external_tokens": 17,
                "generation_requests": 3,
                "generation_tokens": 3,
            },
            {"decode": 1.0},
            id="recompute beside generation",
        ),
        pytest.param(
            {"context_requests": 1, "context_tokens": 1, "computed_tokens": 1},
            {"prefill": 1.0},
            id="a one-token prompt of its own",
        ),
        pytest.param(
            {
                "context_requests": 1,
                "context_tokens": 30,
                "generation_requests": 10,
                "generation_tokens": 10,
            },
            {"prefill": 0.75, "decode": 0.25},
            id="mixed, by token count",
        ),
        pytest.param({"encoder_inputs": 1}, {"prefill": 1.0}, id="encoder"),
        pytest.param({"dummy": True}, {"unattributed": 1.0}, id="data-parallel filler"),
    ],
)
def test_the_phase_of_a_step(counts: dict[str, object], expected: dict[str, float]) -> None:
    """A4, each kind of step once."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    accounting.beat(reporter, 0)
    accounting.step(reporter, reporter.step(10, 1, **counts))
    accounting.beat(reporter, 20)
    accounting.advance(20)

    assert accounting.seconds() == {**expected, "idle": 13}


def test_a_mixed_step_is_divided_by_costs_learned_from_earlier_steps() -> None:
    """A4: a prompt token takes 0.1 ms here and a next token 1 ms; counts would say 0.9 prefill."""
    accounting, reporter, t = NodeAccounting(), StepReporter(), 0.0
    accounting.engine()
    accounting.beat(reporter, 0)
    for number in range(60):
        prompt, requests = 100 + 10 * (number * 7 % 40), 1 + number * 7 % 40
        t += 1
        accounting.step(reporter, reporter.prefill(t, prompt * 1e-4, tokens=prompt))
        t += 1
        accounting.step(reporter, reporter.decode(t, requests * 1e-3, tokens=requests))
    pure = sum((100 + 10 * (number * 7 % 40)) * 1e-4 for number in range(60))
    counts = {"context_requests": 1, "context_tokens": 180, "computed_tokens": 180}
    more = {"generation_requests": 20, "generation_tokens": 20}
    accounting.step(reporter, reporter.step(t + 1, 0.038, **counts, **more))
    accounting.beat(reporter, t + 12)
    accounting.advance(t + 12)

    prefill = accounting.engine_seconds(t + 12)[Phase.PREFILL] - pure
    assert prefill == pytest.approx(0.018, rel=0.05)


def test_idle_time_has_its_reason() -> None:
    """A5: host gap while work is pending, KV wait while only transfers are, else no request."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.beat(reporter, 0)
    accounting.step(reporter, reporter.decode(2, 1, running=1))
    accounting.step(reporter, reporter.decode(4, 1, deferred=1))
    accounting.step(reporter, reporter.decode(8, 1))
    accounting.beat(reporter, 20)
    accounting.advance(20)

    assert accounting.reasons(Use.IDLE) == {
        Reason.NO_REQUEST: 1 + 6,
        Reason.HOST_GAP: 1,
        Reason.KV_WAIT: 3,
    }


def test_starting_and_draining_are_idle_reasons_without_a_role() -> None:
    """A5, A7: a GPU has no role until its engine is ready, and from the start of its drain."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.PREFILL, state=EngineState.STARTING)
    accounting.engine(role=Role.PREFILL, state=EngineState.READY, since=10)
    accounting.beat(reporter, 10)
    accounting.step(reporter, reporter.prefill(12, 1))
    accounting.engine(role=Role.PREFILL, state=EngineState.DRAINING, since=15)
    accounting.step(reporter, reporter.prefill(17, 1))
    accounting.engine(role=Role.PREFILL, state=EngineState.GONE, since=20)
    accounting.advance(20)

    assert accounting.watermark() == 20
    assert accounting.by_role(Role.NONE) == {"idle": 14, "prefill": 1}
    assert accounting.by_role(Role.PREFILL) == {"idle": 4, "prefill": 1}
    assert accounting.reasons(Use.IDLE) == {
        Reason.STARTING: 10,
        Reason.NO_REQUEST: 4,
        Reason.DRAINING: 4,
    }


def test_the_end_of_an_engine_commits_at_once() -> None:
    """A6: no record can follow, so none is awaited."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.step(reporter, reporter.decode(10, 1, running=1))
    accounting.engine(role=Role.DECODE, state=EngineState.GONE, since=10.5)
    accounting.advance(10.5)

    assert accounting.watermark() == 10.5
    assert accounting.seconds() == {"decode": 1, "idle": 9.5}


def test_a_gone_engine_has_no_watermark() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.step(reporter, reporter.decode(10, 1))
    [living] = accounting.ledger.engine_accounts(ns(10))
    accounting.engine(role=Role.DECODE, state=EngineState.GONE, since=11)
    [gone] = accounting.ledger.engine_accounts(ns(11))

    assert (living.watermark_ns, gone.watermark_ns) == (0, None)


def test_a_restarted_engine_continues_the_seconds_of_its_name() -> None:
    """A new process counts from its own zero; the engine's seconds go on."""
    accounting, first, second = (
        NodeAccounting(),
        StepReporter(pid=1, incarnation=1),
        StepReporter(pid=2, incarnation=2),
    )
    accounting.engine(role=Role.DECODE)
    accounting.step(first, first.decode(10, 1, running=1))
    accounting.engine(role=Role.DECODE, state=EngineState.GONE, since=11)
    accounting.engine(role=Role.DECODE, state=EngineState.STARTING, since=12)
    accounting.engine(role=Role.DECODE, state=EngineState.READY, since=20)
    accounting.beat(second, 20)
    accounting.step(second, second.decode(25, 2))
    accounting.beat(second, 40)
    accounting.advance(40)

    assert accounting.seconds() == {"decode": 3, "idle": 30, "unobserved": 1}
    assert accounting.reasons(Use.UNOBSERVED) == {Reason.NO_READING: 1}
    assert accounting.lost(40) == 0


def test_time_without_records_is_unobserved_and_frees_the_watermark() -> None:
    """A6: after 30 s without a message the engine no longer holds its device's accounting open."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.beat(reporter, 10)
    accounting.advance(39)
    assert accounting.watermark() == 4

    accounting.advance(41)

    assert accounting.watermark() == 35
    assert accounting.seconds() == {"idle": 4, "unobserved": 31}
    assert accounting.reasons(Use.UNOBSERVED) == {Reason.NO_RECORD: 31}


def test_time_without_records_is_unobserved_without_gpus_too() -> None:
    """A1, A6: a pseudo-device reports nothing itself; no other engine uses it."""
    ledger, reporter = Ledger(), StepReporter()
    ledger.add_device(pseudo_device("e", 0), 0)
    ready = Assignment("e", Role.DECODE, ("cpu-e",), EngineState.READY, ns(10))
    ledger.assign(ready)
    ledger.advance(ns(15))
    ledger.heartbeat(reporter.key, reporter.beat(15), overlapped=False, now_ns=ns(15))
    ledger.advance(ns(56))

    [account] = ledger.device_accounts()
    assert {(cell.use, cell.reason): round(s, 6) for cell, s in account.cells.items()} == {
        (Use.IDLE, Reason.NO_ENGINE): 10,
        (Use.UNOBSERVED, Reason.NO_RECORD): 40,
    }


def test_activity_without_records_is_unattributed() -> None:
    """A6: a ready engine that reports nothing, on a device that is observed active."""
    accounting = NodeAccounting()
    accounting.engine(role=Role.DECODE)
    accounting.activity(0, 30, 0.5)
    accounting.advance(30)

    assert accounting.watermark() == 20
    assert accounting.reasons(Use.UNATTRIBUTED) == {Reason.NO_RECORD: pytest.approx(10, abs=0.06)}
    assert accounting.unbalanced() == []


def test_activity_of_a_foreign_process_is_unattributed() -> None:
    """A5: a device without engines that works all the time."""
    accounting = NodeAccounting()
    accounting.activity(0, 30, 1.0)
    accounting.advance(30)

    assert accounting.reasons(Use.UNATTRIBUTED) == {Reason.STRANGER: 20}


def test_activity_beside_spans_is_explained_by_them() -> None:
    """A5: samples that touch a span, or may still average over one, are no foreign activity."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.beat(reporter, 0)
    accounting.activity(0, 12, 0.0)
    accounting.activity(12.1, 15.5, 1.0)
    accounting.activity(15.6, 40, 0.0)
    accounting.step(reporter, reporter.decode(15, 3))
    accounting.beat(reporter, 40)
    accounting.advance(40)

    assert accounting.seconds() == {"decode": 3, "idle": 27}


def test_blocks_are_committed_whole() -> None:
    """A5: a watched device moves its watermark from one 5 s edge to the next."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.activity(0, 18, 0.0)
    for t in range(19):
        accounting.beat(reporter, t)
    accounting.advance(18)

    assert accounting.watermark() == 10


def test_a_device_without_readings_and_engines_is_unobserved() -> None:
    """Invariant c: what is not known is not zero."""
    accounting = NodeAccounting()
    accounting.advance(16)

    assert accounting.seconds() == {"unobserved": 10}
    assert accounting.reasons(Use.UNOBSERVED) == {Reason.NO_READING: 10}


@pytest.mark.parametrize("hung", ["driver", "daemon"])
@pytest.mark.parametrize("engine", [False, True], ids=["no engine", "engine"])
def test_a_gap_in_the_readings_of_a_busy_device_is_unobserved_whatever_hung(
    hung: str, engine: bool
) -> None:
    """A6: from 30 to 69 nothing was read; what is read later says nothing about it."""
    accounting = NodeAccounting()
    if engine:
        accounting.engine(role=Role.DECODE)
        accounting.use(Method.ROLE, 0)
    accounting.activity(0, 30, 1.0)
    since = 0.0
    for now in (*range(1, 31), *(range(31, 70) if hung == "driver" else ()), 71, *range(72, 91)):
        if now == 71:
            accounting.activity(70, 90, 1.0)
        accounting.window(since, now, 0.0, method=Method.ROLE)
        since = now
        accounting.advance(now)

    seconds = accounting.seconds()
    known = Reason.NO_RECORD if engine else Reason.NO_READING
    assert (accounting.unbalanced(), seconds.get("idle", 0.0) < 0.2) == ([], True)
    assert accounting.reasons(Use.UNOBSERVED) == {known: pytest.approx(39.0, abs=0.2)}


def test_lost_records_are_restored_from_the_running_totals() -> None:
    """Invariant e: a missing decode step of 2 s between two received ones."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.beat(reporter, 0)
    accounting.step(reporter, reporter.decode(5, 1, running=1))
    reporter.decode(8, 2, running=1)
    accounting.step(reporter, reporter.decode(10, 1))
    accounting.beat(reporter, 30)
    accounting.advance(30)

    assert accounting.seconds()["decode"] == 4
    assert accounting.tokens(30) == {Phase.PREFILL: 0, Phase.DECODE: 3}
    assert accounting.lost(30) == 1


def test_a_lost_last_record_is_restored_by_the_next_heartbeat() -> None:
    """Invariant e: the heartbeat carries the totals too."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.PREFILL)
    accounting.beat(reporter, 0)
    accounting.step(reporter, reporter.prefill(5, 1))
    reporter.prefill(8, 2)
    accounting.beat(reporter, 9)
    accounting.beat(reporter, 30)
    accounting.advance(30)

    assert accounting.seconds()["prefill"] == 3
    assert accounting.lost(30) == 1


def test_a_heartbeat_that_overtakes_its_record_counts_it_once() -> None:
    """Invariant e: received before the record it names, and stamped before it too."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.beat(reporter, 0)
    step = reporter.decode(10, 2)
    accounting.beat(reporter, 9)
    accounting.step(reporter, step)
    accounting.beat(reporter, 30)
    accounting.advance(30)

    assert accounting.seconds()["decode"] == 2
    assert accounting.lost(30) == 0


def test_a_duplicate_changes_nothing_but_its_counter() -> None:
    """Invariant e."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    step = reporter.decode(10, 1)
    accounting.step(reporter, step)
    accounting.step(reporter, step)
    accounting.beat(reporter, 20)
    accounting.advance(20)
    accounting.step(reporter, step)
    accounting.advance(20)

    assert accounting.seconds()["decode"] == 1
    assert accounting.late(20) == 2


def test_an_overlapped_engine_holds_its_device_from_record_to_record() -> None:
    """A2: with async scheduling elapsed is only a wait; pending work joins record to record."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.beat(reporter, 0, overlapped=True)
    accounting.step(reporter, reporter.decode(5, 1, running=1))
    accounting.step(reporter, reporter.decode(7, 0.25, running=1))
    accounting.step(reporter, reporter.decode(8, 0.25))
    accounting.step(reporter, reporter.decode(12, 0.5))
    accounting.beat(reporter, 20, overlapped=True)
    accounting.advance(20)

    assert accounting.seconds() == {"decode": 4.5, "idle": 9.5}
    assert Reason.HOST_GAP not in accounting.reasons(Use.IDLE)


def test_waiting_for_remote_kv_does_not_join_overlapped_records() -> None:
    """A2: deferred requests are not pending work."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.beat(reporter, 0, overlapped=True)
    accounting.step(reporter, reporter.decode(5, 1, deferred=2))
    accounting.step(reporter, reporter.decode(9, 1))
    accounting.beat(reporter, 20, overlapped=True)
    accounting.advance(20)

    assert accounting.seconds() == {"decode": 2, "idle": 12}
    assert accounting.reasons(Use.IDLE)[Reason.KV_WAIT] == 3


def test_a_new_daemon_starts_from_the_plugins_totals() -> None:
    """Invariant b: steps before the daemon listened are counted nowhere."""
    accounting, reporter = NodeAccounting(), StepReporter()
    for t in range(1, 50):
        reporter.decode(-50 + t, 0.9)
    accounting.engine(role=Role.DECODE)
    accounting.beat(reporter, 0.5)
    accounting.step(reporter, reporter.decode(1, 3))
    accounting.beat(reporter, 20)
    accounting.advance(20)

    assert accounting.seconds() == {"decode": 1, "idle": 13}
    assert accounting.owed(20) == 0
    assert accounting.lost(20) == 0


def test_an_engine_adopted_in_mid_step_holds_its_watermark() -> None:
    """A6: the hello of its plugin reports the requests left running by the last step."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.PREFILL)
    accounting.ledger.heartbeat(
        reporter.key, reporter.beat(1)._replace(running=1), overlapped=False, now_ns=ns(1)
    )
    for t in range(2, 20):
        accounting.beat(reporter, t)
        accounting.advance(t)
    assert accounting.watermark() == 0

    accounting.step(reporter, reporter.prefill(20, 15))
    accounting.beat(reporter, 40)
    accounting.advance(40)

    assert accounting.seconds() == {"prefill": 15, "idle": 19}


def test_a_role_change_splits_the_accounts_at_its_instant() -> None:
    """A7: seconds before belong to the old role, seconds after to the new one."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.PREFILL)
    accounting.beat(reporter, 0)
    accounting.step(reporter, reporter.prefill(8, 1))
    accounting.engine(role=Role.DECODE, since=10)
    accounting.step(reporter, reporter.decode(12, 1))
    accounting.beat(reporter, 26)
    accounting.advance(26)

    assert accounting.by_role(Role.PREFILL) == {"idle": 9, "prefill": 1}
    assert accounting.by_role(Role.DECODE) == {"idle": 9, "decode": 1}


def test_a_mig_instance_counts_by_its_weight() -> None:
    """A1: three sevenths of a GPU."""
    accounting, reporter = NodeAccounting(weight=3 / 7), StepReporter()
    accounting.engine(role=Role.DECODE)
    accounting.beat(reporter, 0)
    accounting.step(reporter, reporter.decode(10, 7))
    accounting.beat(reporter, 20)
    accounting.advance(20)

    assert accounting.seconds() == {"decode": 3, "idle": 3}
    assert accounting.engine_seconds(20)[Phase.DECODE] == 3


def test_a_slow_engine_beside_a_fast_one_holds_their_common_device() -> None:
    """A6: the watermark is the least of the live engines' marks, nothing is lost by waiting."""
    accounting, a, b = NodeAccounting(), StepReporter("a", pid=1), StepReporter("b", pid=2)
    accounting.engine("a", Role.PREFILL)
    accounting.engine("b", Role.DECODE)
    accounting.step(a, a.prefill(5, 1, running=1))
    for t in range(6, 26):
        accounting.step(b, b.decode(t, 0.5))
        accounting.beat(a, t)
        accounting.advance(t)
    assert accounting.watermark() == 0

    accounting.step(a, a.prefill(25, 20))
    accounting.beat(b, 40)
    accounting.beat(a, 40)
    accounting.advance(40)

    assert accounting.engine_seconds(40, "a")[Phase.PREFILL] == 1 + 20 - 20 * 0.5 / 2
    assert accounting.engine_seconds(40, "b")[Phase.DECODE] == 20 * 0.5 / 2
    assert accounting.unbalanced() == []


def test_the_reported_totals_of_an_engine_are_summed_over_its_processes() -> None:
    """Compared with the accounted seconds, they show what measuring lost."""
    accounting, first, second = (
        NodeAccounting(gpus=2),
        StepReporter(pid=1, incarnation=1),
        StepReporter(pid=2, incarnation=2),
    )
    accounting.engine(role=Role.DECODE)
    accounting.beat(first, 0)
    accounting.step(first, first.decode(5, 2))
    accounting.engine(role=Role.DECODE, state=EngineState.GONE, since=6)
    accounting.engine(role=Role.DECODE, since=7)
    accounting.beat(second, 7)
    accounting.step(second, second.prefill(9, 1))
    accounting.beat(second, 30)
    accounting.advance(30)
    [account] = accounting.ledger.engine_accounts(0)

    assert account.reported.steps == (1, 1, 0, 0)
    assert account.reported.elapsed_ns == (1_000_000_000, 2_000_000_000, 0, 0)
    assert sum(account.gpu_seconds.values()) == 2 * sum(account.reported.elapsed_ns) / 1e9


def test_a_lost_last_record_does_not_hold_the_watermark() -> None:
    """The record that emptied the engine is lost; each heartbeat after it reports it empty."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    accounting.beat(reporter, 0)
    accounting.step(reporter, reporter.decode(2, 1, running=3))
    reporter.decode(3, 0.5)
    for t in range(4, 30):
        accounting.beat(reporter, t)
        accounting.advance(t)

    assert accounting.watermark() == 23
    assert accounting.seconds() == {"decode": 1.5, "idle": 21.5}
    assert accounting.lost(29) == 1


def test_a_stream_first_received_in_a_batch_has_the_totals_of_its_later_steps() -> None:
    accounting, reporter = NodeAccounting(gpus=1), StepReporter()
    accounting.engine(role=Role.DECODE)
    steps = [reporter.decode(t, 1) for t in (1, 2, 3)]
    accounting.ledger.steps(reporter.key, rows_of(steps), now_ns=ns(3))
    [account] = accounting.ledger.engine_accounts(0)

    # Totals up to the first record are not counted: it sets where counting begins.
    assert account.reported.steps == (0, 2, 0, 0)
