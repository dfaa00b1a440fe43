import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_exporter.attribution.cost_model.samples import Proxies, StepWork
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Method, Phase, Reason, Step, StepTotals, StreamKey, Use
from disagg_exporter.steps.fpm.message import FpmMessage, FpmStream, Queued, Scheduled, decode
from disagg_exporter.steps.rows import kind_of, rows_of, steps_of
from support.accounting import NodeAccounting
from support.single_steps import read

DATA = Path(__file__).parents[4] / "data" / "dynamo-1.6.1"

MS = 1_000_000
IDLE = FpmMessage(worker_id="w")


def message(prefill: int = 0, decode: int = 0, ms: int = 10, worker: str = "w") -> FpmMessage:
    """A step of one prompt and some decoding requests with a context of 100 tokens each."""
    done = Scheduled(min(prefill, 1), prefill, 0, decode, 100 * decode)
    return FpmMessage(worker_id=worker, wall_time=ms / 1000, scheduled_requests=done)


def stream() -> FpmStream:
    return FpmStream("e", 7, 0)


def taken(heard: FpmStream, *numbers: int) -> list[Step]:
    steps = [heard.ingest(n, message(decode=4), n * 20 * MS) for n in numbers]
    return [step for step in steps if step is not None]


def test_a_message_becomes_a_step_with_all_its_fields() -> None:
    done, queued = Scheduled(2, 512, 1024, 8, 32000), Queued(3, 1)

    step = stream().ingest(5, FpmMessage(1, "w", 0, 0.125, done, queued), 99, 65536.0)

    assert step == Step(
        t_ns=99,
        elapsed_ns=125 * MS,
        sequence=1,
        context_requests=2,
        context_tokens=512,
        generation_requests=8,
        generation_tokens=8,
        computed_tokens=512,
        cached_tokens=1024,
        running=10,
        waiting=4,
        kv_usage_ratio=(32000 + 1024 + 512) / 65536,
        totals=StepTotals((0, 0, 1, 0), (0, 0, 125 * MS, 0), 512, 8),
        decode_kv_tokens=32000,
    )


def test_the_use_of_a_cache_of_unknown_size_is_unknown_unless_nothing_is_in_it() -> None:
    done, idle = stream().ingest(0, message(decode=4), 0), stream().ingest(0, IDLE, 0)

    assert done is not None
    assert idle is not None
    assert (done.kv_usage_ratio, idle.kv_usage_ratio) == (None, 0.0)
    assert steps_of(rows_of([done, idle])) == [done, idle]


def test_the_work_of_a_step_follows_from_its_message() -> None:
    """Two chunks of 256 tokens, each after 512 tokens of context."""
    done = Scheduled(2, 512, 1024, 8, 32000)
    step = stream().ingest(0, FpmMessage(scheduled_requests=done, wall_time=1.0), 0)
    assert step is not None

    work = read(Proxies(), step, kind_of(step))

    assert work == StepWork(512, 256 * 1024 + 512 * 257 / 2, 8, 32000)


def test_the_context_of_chunks_comes_from_their_message_alone() -> None:
    heard, proxies = stream(), Proxies()
    attended = []
    for number, before in enumerate((0, 256, 512)):
        done = Scheduled(1, 256, before)
        step = heard.ingest(number, FpmMessage(scheduled_requests=done, wall_time=0.1), number)
        assert step is not None
        attended.append(read(proxies, step, kind_of(step)).prefill_attended)

    assert attended == [256 * before + 256 * 257 / 2 for before in (0, 256, 512)]


def test_the_one_token_of_a_transferred_request_is_decode() -> None:
    done = Scheduled(num_prefill_requests=2, sum_prefill_tokens=2, sum_prefill_kv_tokens=4000)

    step = stream().ingest(0, FpmMessage(scheduled_requests=done, wall_time=0.1), 0)

    assert step is not None
    assert kind_of(step) == wire.GENERATION
    assert (step.totals.prefill_tokens, step.totals.decode_tokens) == (0, 2)


def test_a_message_without_requests_is_a_dummy_step() -> None:
    step = stream().ingest(0, FpmMessage(wall_time=0.1), 0)

    assert step is not None
    assert kind_of(step) == wire.DUMMY_STEP
    assert step.totals.steps == (0, 0, 0, 1)


def test_totals_accumulate_over_steps() -> None:
    heard = stream()

    steps = taken(heard, 10, 11, 12)

    assert [step.sequence for step in steps] == [1, 2, 3]
    assert steps[-1].totals == StepTotals((0, 3, 0, 0), (0, 30 * MS, 0, 0), 0, 12)


def test_a_repeated_frame_counts_once() -> None:
    heard = stream()

    steps = taken(heard, 1, 2, 2, 1, 3)

    assert [step.sequence for step in steps] == [1, 2, 3]
    assert steps[-1].totals.steps == (0, 3, 0, 0)
    assert (heard.repeated, heard.lost) == (2, 0)


def test_a_gap_is_counted_as_lost_and_not_estimated() -> None:
    heard = stream()

    steps = taken(heard, 1, 2, 6)

    assert [step.sequence for step in steps] == [1, 2, 6]
    assert heard.lost == 3
    assert steps[-1].totals == StepTotals((0, 3, 0, 0), (0, 30 * MS, 0, 0), 0, 12, drops=3)


def test_an_idle_message_takes_no_time_and_has_no_running_request() -> None:
    heard = stream()
    taken(heard, 1)

    step = heard.ingest(2, IDLE, 50 * MS)

    assert step is not None
    assert (step.elapsed_ns, step.running, step.sequence) == (0, 0, 2)
    assert step.totals.steps == (0, 1, 0, 0)


def test_another_worker_at_the_same_address_is_counted_from_zero() -> None:
    heard = stream()
    taken(heard, 5000, 5001)

    step = heard.ingest(0, message(decode=1, worker="other"), 0)

    assert step is not None
    assert (step.sequence, step.totals.steps) == (1, (0, 1, 0, 0))
    assert heard.key == StreamKey("e", 7, 1, 0)


def test_a_publisher_that_restarts_at_zero_is_counted_from_zero() -> None:
    heard = stream()

    steps = taken(heard, 5000, 0, 1)

    assert [step.sequence for step in steps] == [1, 1, 2]
    assert (heard.key.incarnation, heard.lost, heard.repeated) == (1, 0, 0)


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), max_size=60))
def test_no_order_of_frames_counts_a_frame_twice(numbers: list[int]) -> None:
    heard = stream()
    steps = taken(heard, *numbers)

    assert len(steps) + heard.repeated == len(numbers)
    assert len({step.sequence for step in steps}) == len(steps)
    if steps:
        assert sum(steps[-1].totals.steps) == len(steps) <= len(set(numbers))
        assert heard.lost == max(numbers) - numbers[0] + 1 - len(steps)


def account(
    books: NodeAccounting, heard: FpmStream, number: int, told: FpmMessage, second: int
) -> None:
    """Give a message to the accounting, as the daemon does."""
    step = heard.ingest(number, told, second * 1000 * MS)
    assert step is not None
    if heard.is_heartbeat:
        books.ledger.heartbeat(heard.key, step, overlapped=False, now_ns=step.t_ns)
    else:
        books.ledger.step(heard.key, step, now_ns=step.t_ns)


def test_a_long_step_is_accounted_in_full_despite_idle_messages_meanwhile() -> None:
    """Dynamo's publisher sends an idle message each second in which it has no step to publish."""
    books, heard = NodeAccounting(), stream()
    books.engine("e")
    books.use(Method.FPM, 0.0)
    long_step = FpmMessage(
        wall_time=20.0,
        scheduled_requests=Scheduled(num_prefill_requests=1, sum_prefill_tokens=9000),
    )

    for second in range(1, 71):
        for tick in range(second * 10 - 9, second * 10 + 1):
            active = any(start < tick <= start + 200 for start in (150, 380))
            books.tell(tick / 10, busy_ratio=float(active))
        account(books, heard, second, long_step if second in (35, 58) else IDLE, second)
        books.advance(second)

    assert books.seconds()["prefill"] == 40
    assert books.cut(70) == books.owed(70) == 0
    assert books.reasons(Use.UNATTRIBUTED).get(Reason.STRANGER, 0) == 0


def test_reported_steps_are_accounted_and_lost_ones_counted() -> None:
    """Busy for 10 ms of every 20; two of five hundred frames never came, one came twice."""
    books, heard = NodeAccounting(), stream()
    books.engine("e")
    books.use(Method.FPM, 0.0)

    for number in [n for n in range(1, 501) if n not in (30, 31)] + [500]:
        step = heard.ingest(number, message(decode=4), number * 20 * MS)
        if step is not None:
            books.ledger.step(heard.key, step, now_ns=step.t_ns)
    for second in range(11, 40):
        account(books, heard, 490 + second, IDLE, second)
        books.advance(second)

    assert books.engine_seconds(40) == {Phase.PREFILL: 0, Phase.DECODE: 498 * 0.01}
    assert books.lost(40) == heard.lost == 2
    assert books.watermark() > 30
    assert books.reasons(Use.IDLE)[Reason.NO_REQUEST] > 19
    assert books.unbalanced() == []


@pytest.mark.parametrize(
    ("file", "totals"),
    [
        (
            "fpm_prefill.jsonl.gz",
            StepTotals((24, 0, 0, 0), (456_643_975, 0, 0, 0), prefill_tokens=3872),
        ),
        # 24 requests of 60 tokens each.
        (
            "fpm_decode.jsonl.gz",
            StepTotals((0, 437, 0, 0), (0, 2_624_079_551, 0, 0), decode_tokens=24 * 60),
        ),
    ],
)
def test_the_totals_of_recorded_workers_match(file: str, totals: StepTotals) -> None:
    """Rows are when a frame came (ns after the first), its number and its body in hex."""
    heard = stream()
    with gzip.open(DATA / file, "rt") as rows:
        recorded = [json.loads(row) for row in rows]

    steps = [heard.ingest(n, decode(bytes.fromhex(body)), t_ns) for t_ns, n, body in recorded]

    assert steps[-1] is not None
    assert steps[-1].totals == totals
    assert (heard.lost, heard.repeated) == (0, 0)


def test_repeated_idle_messages_are_heartbeats_without_a_new_sequence() -> None:
    """A publisher sends them during a long step, too: they do not prove that it is idle."""
    stream = FpmStream("e", 1, 0)
    idle = FpmMessage()
    step = FpmMessage(
        wall_time=9.0,
        scheduled_requests=Scheduled(num_prefill_requests=1, sum_prefill_tokens=500),
    )
    waiting = FpmMessage(queued_requests=Queued(num_prefill_requests=1))

    told = []
    for number, message in enumerate((idle, idle, step, idle, idle, waiting, waiting, idle, idle)):
        taken = stream.ingest(number, message, t_ns=number)
        assert taken is not None
        told.append((taken.sequence, stream.is_heartbeat))

    assert told == [
        (1, False),
        (1, True),
        (2, False),
        (3, False),
        (3, True),
        (4, False),
        (5, False),
        (6, False),
        (6, True),
    ]
    assert stream.lost == 0
