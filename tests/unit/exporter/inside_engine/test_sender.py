"""The engine's end of the step records: it queues them briefly, counts always, never waits."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disagg_exporter.inside_engine.disagg_steps import sender as sender_module
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.sender import (
    KEPT_RECORDS,
    KEPT_SECONDS,
    MOST_KEPT,
    Facts,
    Sender,
    StepReport,
)
from support.steps import BareDaemon
from support.wire_records import records_in

PREFILL_STEP = Facts(elapsed_ns=300, context_requests=1, context_tokens=512, computed_tokens=512)
DECODE_STEP = Facts(elapsed_ns=20, generation_requests=7, generation_tokens=7, running=7)

# A step this long after a packet is sent at once.
LATER = round(KEPT_SECONDS * 1e9)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[BareDaemon]:
    bare = BareDaemon(tmp_path / "s")
    yield bare
    bare.die()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Sender]]:
    made: list[Sender] = []

    def build(**how: object) -> Sender:
        made.append(Sender(str(tmp_path / "s"), **how))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for sender in made:
        sender.close()


def test_the_sender_sends_one_hello_and_then_heartbeats(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make(engine_index=3, flags=wire.OVERLAPPED, clock_ns=iter(range(100, 200)).__next__)

    sender.beat()
    sender.beat()
    sender.beat()

    daemon.accept()
    records = daemon.hear_all()
    assert [r.kind for r in records] == [wire.HELLO, wire.HEARTBEAT, wire.HEARTBEAT]
    assert [r.t_ns for r in records] == [101, 102, 103]
    assert {(r.pid, r.engine_index, r.flags, r.incarnation, r.sequence) for r in records} == {
        (os.getpid(), 3, wire.OVERLAPPED | wire.HELD_TOTALS, 100, 0)
    }


def test_a_step_after_an_idle_period_is_sent_at_once_with_its_totals(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make()
    sender.beat()
    daemon.accept()

    sender.step(PREFILL_STEP, t_ns=1000)
    sender.step(DECODE_STEP, t_ns=1000 + LATER)

    _hello, first, second = daemon.hear_all()
    assert (first.sequence, first.t_ns, first.elapsed_ns, first.context_tokens) == (
        1,
        1000,
        300,
        512,
    )
    assert (second.sequence, second.running, second.generation_tokens) == (2, 7, 7)
    assert (second.steps_context, second.steps_generation, second.steps_mixed) == (1, 1, 0)
    assert (second.ns_context, second.ns_generation) == (300, 20)
    assert (second.prefill_tokens, second.decode_tokens, second.drops) == (512, 7, 0)


def test_steps_in_quick_succession_are_sent_together(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make()
    sender.beat()
    daemon.accept()

    sender.step(PREFILL_STEP, t_ns=1)
    for t_ns in (2, 3, LATER):
        sender.step(DECODE_STEP, t_ns)
    before = len(daemon.hear_all())
    sender.step(DECODE_STEP, t_ns=1 + LATER)

    assert before == 2
    assert daemon.link is not None
    records = records_in(daemon.link.recv(wire.MAX_PACKET_BYTES))
    assert [(r.sequence, r.t_ns) for r in records] == [(2, 2), (3, 3), (4, LATER), (5, 1 + LATER)]
    assert [r.decode_tokens for r in records] == [7, 14, 21, 28]


def test_no_more_steps_are_queued_than_fit_into_a_packet(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make()
    sender.beat()
    daemon.accept()

    for t_ns in range(1 + KEPT_RECORDS):
        sender.step(DECODE_STEP, t_ns)

    assert daemon.hear_all()[-1].sequence == 1 + KEPT_RECORDS


def test_a_heartbeat_sends_the_queue_before_naming_its_last_step(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    """A heartbeat that named an unsent step would report it lost."""
    sender = make()
    sender.beat()
    daemon.accept()
    sender.step(PREFILL_STEP, t_ns=1)
    sender.step(DECODE_STEP, t_ns=2)
    first = daemon.hear_all()

    sender.beat()

    assert [r.kind for r in first] == [wire.HELLO, wire.STEP]
    assert [(r.kind, r.sequence) for r in daemon.hear_all()] == [
        (wire.STEP, 2),
        (wire.HEARTBEAT, 2),
    ]


def test_queued_reports_are_read_when_sent_and_unreadable_ones_are_drops(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    told: list[str] = []

    def read(word: str) -> StepReport | None:
        told.append(word)
        return {"step": StepReport(DECODE_STEP), "no news": None}[word]

    sender = make(read=read)
    sender.beat()
    daemon.accept()
    sender.keep(1, "step")
    sender.keep(2, "no news")
    sender.keep(3, "what?")
    sender.keep(4, "step")
    before = list(told)
    sender.beat()

    assert before == ["step"]
    assert told == ["step", "no news", "what?", "step"]
    steps = [r for r in daemon.hear_all() if r.kind == wire.STEP]
    assert [(r.sequence, r.t_ns, r.drops) for r in steps] == [(1, 1, 0), (2, 4, 1)]


@contextlib.contextmanager
def another_thread_sending(daemon: BareDaemon, make: Callable[..., Sender]) -> Iterator[Sender]:
    """Yield a sender while another thread is about to send the step of t_ns 1, until the end."""
    reading, go_on = threading.Event(), threading.Event()

    def read(told: StepReport) -> StepReport:
        if told.dummy:
            reading.set()
            assert go_on.wait(20)
        return told

    sender = make(read=read)
    sender.beat()
    daemon.accept()
    other = threading.Thread(target=sender.step, args=(DECODE_STEP, 1), kwargs={"dummy": True})
    other.start()
    assert reading.wait(20)
    yield sender
    go_on.set()
    other.join()


def test_a_step_is_queued_while_another_thread_sends(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    """The engine's thread never waits."""
    with another_thread_sending(daemon, make) as sender:
        sender.step(DECODE_STEP, t_ns=2 * LATER)
    sender.beat()

    assert [r.t_ns for r in daemon.hear_all() if r.kind == wire.STEP] == [1, 2 * LATER]


def test_a_heartbeat_repeats_the_last_steps_state_without_its_work(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make()
    sender.beat()
    daemon.accept()
    sender.step(DECODE_STEP._replace(waiting=2, deferred=1, kv_usage_ratio=0.5), t_ns=1000)

    sender.beat()

    beat = daemon.hear_all()[-1]
    assert beat.kind == wire.HEARTBEAT
    assert (beat.sequence, beat.running, beat.waiting, beat.deferred) == (1, 7, 2, 1)
    assert beat.kv_usage_ratio == 0.5
    assert (beat.elapsed_ns, beat.generation_requests, beat.generation_tokens) == (0, 0, 0)
    assert (beat.steps_generation, beat.ns_generation, beat.decode_tokens) == (1, 20, 7)


def test_steps_without_a_daemon_are_counted_in_the_next_hello(
    tmp_path: Path, make: Callable[..., Sender]
) -> None:
    sender = make()
    sender.beat()
    sender.step(PREFILL_STEP, t_ns=1)
    sender.step(DECODE_STEP, t_ns=1 + LATER)
    daemon = BareDaemon(tmp_path / "s")

    sender.beat()

    daemon.accept()
    hello = daemon.hear()
    assert hello.kind == wire.HELLO
    assert (hello.sequence, hello.drops, hello.running) == (2, 2, 7)
    assert (hello.prefill_tokens, hello.decode_tokens) == (512, 7)
    daemon.die()


def test_a_full_socket_drops_without_waiting_and_recovers(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make()
    sender.beat()
    daemon.accept()
    made = 0
    dropped = False
    while not dropped:
        made += 100
        assert made < 1_000_000
        for _ in range(100):
            sender.step(DECODE_STEP, t_ns=made)
        dropped = sender.drops > 0

    received = daemon.hear_all()
    sender.beat()
    *kept, beat = daemon.hear_all()

    steps = [r for r in received if r.kind == wire.STEP]
    assert (beat.kind, beat.sequence, beat.steps_generation) == (wire.HEARTBEAT, made, made)
    assert sender.drops == beat.drops == made - len(steps) - len(kept)


def test_a_restarted_daemon_is_found_again_within_two_beats(
    tmp_path: Path, make: Callable[..., Sender]
) -> None:
    first = BareDaemon(tmp_path / "s")
    sender = make()
    sender.beat()
    first.accept()
    first.die()
    (tmp_path / "s").unlink()
    second = BareDaemon(tmp_path / "s")

    sender.step(DECODE_STEP, t_ns=1)
    sender.beat()
    sender.step(DECODE_STEP, t_ns=1 + LATER)

    second.accept()
    hello, step = second.hear(), second.hear()
    assert (hello.kind, hello.sequence, hello.drops) == (wire.HELLO, 1, 1)
    assert (step.kind, step.sequence, step.drops) == (wire.STEP, 2, 1)
    second.die()


def test_a_daemon_that_died_while_idle_is_noticed_by_a_beat(
    tmp_path: Path, make: Callable[..., Sender]
) -> None:
    first = BareDaemon(tmp_path / "s")
    sender = make()
    sender.beat()
    first.accept()
    first.die()
    (tmp_path / "s").unlink()
    second = BareDaemon(tmp_path / "s")

    sender.beat()
    sender.beat()

    second.accept()
    assert second.hear().kind == wire.HELLO
    second.die()


def test_steps_never_connect(daemon: BareDaemon, make: Callable[..., Sender]) -> None:
    """Connecting is the beating thread's task, once a second: there are thousands of steps."""
    sender = make()

    for number in range(10):
        sender.step(DECODE_STEP, t_ns=1 + number * LATER)

    assert not daemon.waits()
    assert sender.drops == 10


def test_a_dummy_step_counts_its_time_but_no_tokens(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make()
    sender.beat()
    daemon.accept()

    sender.step(Facts(elapsed_ns=50), t_ns=1, dummy=True)

    record = daemon.hear_all()[-1]
    assert record.flags == wire.DUMMY
    assert (record.steps_dummy, record.ns_dummy) == (1, 50)
    assert (record.prefill_tokens, record.decode_tokens) == (0, 0)


def test_a_state_record_is_no_step_in_the_totals(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make()
    sender.beat()
    daemon.accept()

    sender.step(Facts(waiting=4), t_ns=1, counted=False)

    record = daemon.hear_all()[-1]
    assert (record.kind, record.sequence, record.waiting) == (wire.STEP, 1, 4)
    assert (record.steps_context, record.steps_generation) == (0, 0)


def test_a_fact_out_of_range_is_counted_nowhere(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    """An invalid total would make every later record unsendable."""
    sender = make()
    sender.beat()
    daemon.accept()

    sender.step(DECODE_STEP._replace(generation_tokens=-1), t_ns=1)
    sender.step(DECODE_STEP, t_ns=1 + LATER)

    record = daemon.hear_all()[-1]
    assert (record.sequence, record.decode_tokens, record.steps_generation) == (1, 7, 1)
    assert (record.drops, sender.drops) == (1, 1)


def test_a_forked_child_becomes_a_separate_stream(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    pids = [10, 10]
    sender = make(getpid=lambda: pids[-1], clock_ns=iter(range(1, 100)).__next__)
    sender.beat()
    daemon.accept()
    sender.step(DECODE_STEP, t_ns=1)
    parent = daemon.hear_all()[-1]
    sender.step(DECODE_STEP, t_ns=2)

    pids.append(11)
    sender.step(DECODE_STEP, t_ns=3)
    sender.beat()

    daemon.accept()
    hello = daemon.hear()
    assert (parent.pid, parent.incarnation, parent.sequence) == (10, 1, 1)
    # Not 14: the step that the parent had queued is the parent's to send.
    assert (hello.pid, hello.sequence, hello.drops, hello.decode_tokens) == (11, 1, 1, 7)
    assert hello.incarnation > parent.incarnation


def test_the_fork_of_a_child_leaves_the_parents_connection_alone(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make()
    sender.beat()
    daemon.accept()

    child = os.fork()
    if child == 0:
        sender.step(DECODE_STEP, t_ns=1)
        os._exit(0 if sender.drops == 1 else 1)
    _, status = os.waitpid(child, 0)
    sender.step(PREFILL_STEP, t_ns=2)

    assert os.waitstatus_to_exitcode(status) == 0
    heard = daemon.hear_all()
    assert [r.kind for r in heard] == [wire.HELLO, wire.STEP]
    assert heard[-1].pid == os.getpid()
    assert (heard[-1].sequence, heard[-1].prefill_tokens, heard[-1].decode_tokens) == (1, 512, 0)


def test_the_sender_thread_connects_and_beats_while_the_engine_is_idle(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make(beat_seconds=0.01)

    sender.start()

    daemon.accept()
    assert [daemon.hear().kind for _ in range(3)] == [wire.HELLO, wire.HEARTBEAT, wire.HEARTBEAT]


def test_the_sender_thread_sends_the_queue_without_waiting_for_a_beat(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make(beat_seconds=10**6)
    sender.start()
    daemon.accept()
    daemon.hear()

    now_ns = time.monotonic_ns()
    sender.step(PREFILL_STEP, now_ns)
    for _ in range(2):
        sender.step(DECODE_STEP, now_ns)

    assert [daemon.hear().sequence for _ in range(3)] == [1, 2, 3]


def test_closing_sends_the_queue_and_disconnects(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make(beat_seconds=10**6, clock_ns=lambda: 0)
    sender.start()
    daemon.accept()
    for _ in range(3):
        sender.step(DECODE_STEP, t_ns=1)

    sender.close()

    heard = daemon.hear_all()
    assert [r.kind for r in heard] == [wire.HELLO, *[wire.STEP] * 3]
    assert daemon.link is not None
    assert daemon.link.recv(1) == b""


EXITING = """
import sys
from disagg_exporter.inside_engine.disagg_steps.sender import Facts, Sender
sender = Sender(sys.argv[1])
sender.beat()
sender.start()
for _ in range(3):
    sender.step(Facts(elapsed_ns=1), t_ns=1)
"""


def test_an_engine_that_ends_normally_sends_everything(daemon: BareDaemon) -> None:
    subprocess.run([sys.executable, "-c", EXITING, str(daemon.path)], check=True, timeout=60)

    daemon.accept()
    assert max(r.sequence for r in daemon.hear_all()) == 3


def test_an_impossible_socket_path_counts_as_a_missing_daemon(tmp_path: Path) -> None:
    sender = Sender(str(tmp_path / ("x" * 200)))

    sender.beat()
    sender.step(DECODE_STEP, t_ns=1)

    assert sender.drops == 1
    sender.close()


def test_a_listener_of_another_type_counts_as_a_missing_daemon(
    tmp_path: Path, make: Callable[..., Sender]
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.bind(str(tmp_path / "s"))
        stranger.listen()
        sender = make()

        sender.beat()
        sender.step(DECODE_STEP, t_ns=1)

    assert sender.drops == 1


def test_steps_that_cannot_be_sent_for_long_are_dropped(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    """For example while connecting hangs: the queue holds the engine's data."""
    with another_thread_sending(daemon, make) as sender:
        for number in range(MOST_KEPT + 10):
            sender.step(DECODE_STEP, t_ns=2 + number)
    while (beat := daemon.hear_all()[-1]).sequence < 1 + MOST_KEPT:
        sender.beat()

    assert (beat.sequence, beat.steps_generation, sender.drops) == (1 + MOST_KEPT, MOST_KEPT, 10)


def test_an_engine_ends_though_its_sender_is_stuck(
    daemon: BareDaemon, make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "CLOSE_SECONDS", 0.01)
    reading, go_on = threading.Event(), threading.Event()

    def read(told: StepReport) -> StepReport:
        reading.set()
        assert go_on.wait(20)
        return told

    sender = make(read=read)
    stuck = threading.Thread(target=sender.step, args=(DECODE_STEP, 1))
    stuck.start()
    assert reading.wait(20)
    closing = threading.Thread(target=sender.close)
    closing.start()
    closing.join(10)
    ended = not closing.is_alive()
    go_on.set()
    stuck.join()
    closing.join()

    assert ended


def test_a_sender_that_may_start_no_thread_can_be_closed(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked child with too many threads already still has to end."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sender = make()

    with pytest.raises(RuntimeError):
        sender.start()
    sender.close()


def test_a_heartbeat_contains_the_requests_in_flight(
    daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make(in_flight=iter([7, 0]).__next__)
    sender.beat()
    daemon.accept()
    sender.step(PREFILL_STEP, t_ns=1)
    sender.beat()

    hello, step, beat = daemon.hear_all()
    assert (hello.flags, hello.context_requests) == (wire.IN_FLIGHT, 7)
    assert (step.flags, step.context_requests) == (0, 1)
    assert (beat.flags, beat.context_requests) == (wire.IN_FLIGHT, 0)


@pytest.mark.parametrize("count", [lambda: None, lambda: -1, lambda: 1 / 0, lambda: "many"])
def test_an_unknown_number_in_flight_is_not_sent(
    count: Callable[[], int | None], daemon: BareDaemon, make: Callable[..., Sender]
) -> None:
    sender = make(in_flight=count)
    sender.beat()
    sender.beat()

    daemon.accept()
    assert [(r.flags, r.context_requests) for r in daemon.hear_all()] == [(0, 0), (0, 0)]
