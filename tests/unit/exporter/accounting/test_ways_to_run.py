"""For each way an engine may run: no step is lost, none counts twice, each has its phase."""

from __future__ import annotations

import random

import pytest

from disagg_exporter.model import Assignment, EngineState, Phase, Role, Step
from support.accounting import NodeAccounting, StepReporter, ns


def _settled(
    accounting: NodeAccounting, tellers: list[StepReporter], t: float
) -> dict[Phase, float]:
    """Let everything be committed; the accounting must balance."""
    for reporter in tellers:
        accounting.beat(reporter, t + 10)
    accounting.advance(t + 10)
    assert accounting.unbalanced() == []
    return accounting.engine_seconds(t + 10)


def _book(
    counts: list[dict[str, int]], elapsed: float = 0.5
) -> tuple[NodeAccounting, dict[Phase, float]]:
    """Deliver one record a second; return the accounting and the engine's seconds."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    accounting.beat(reporter, 0)
    for number, count in enumerate(counts, start=1):
        accounting.step(reporter, reporter.step(number, elapsed, **count))
    return accounting, _settled(accounting, [reporter], len(counts))


def test_chunked_prefill_is_prefill_chunk_by_chunk() -> None:
    """A prompt of 300 in three chunks; the request's count comes whole with the last one."""
    chunk = {"context_requests": 1, "context_tokens": 100}
    accounting, seconds = _book([chunk, chunk, {**chunk, "computed_tokens": 300}])

    assert seconds == {Phase.PREFILL: 1.5, Phase.DECODE: 0}
    assert accounting.tokens(13) == {Phase.PREFILL: 300, Phase.DECODE: 0}


def test_chunks_beside_decode_are_divided_step_by_step() -> None:
    chunk = {"context_requests": 1, "context_tokens": 30}
    decode = {"generation_requests": 10, "generation_tokens": 10}
    accounting, seconds = _book([chunk | decode, chunk | decode | {"computed_tokens": 60}, decode])

    assert seconds == {Phase.PREFILL: 0.75, Phase.DECODE: 0.75}
    assert accounting.tokens(13) == {Phase.PREFILL: 60, Phase.DECODE: 30}


def test_tokens_from_the_prefix_cache_are_not_counted_as_work() -> None:
    hit = {"context_requests": 1, "context_tokens": 10, "computed_tokens": 10}
    decode = {"generation_requests": 10, "generation_tokens": 10}
    accounting, seconds = _book(
        [hit | {"cached_tokens": 5000}, hit | decode | {"cached_tokens": 5000}]
    )

    assert seconds == {Phase.PREFILL: 0.75, Phase.DECODE: 0.25}
    assert accounting.tokens(12) == {Phase.PREFILL: 20, Phase.DECODE: 10}


def test_transferred_requests_are_decode_from_their_first_step() -> None:
    first = {"context_requests": 2, "context_tokens": 2, "external_tokens": 900}
    decode = {"generation_requests": 2, "generation_tokens": 2}
    accounting, seconds = _book([first, first | decode, decode])

    assert seconds == {Phase.PREFILL: 0, Phase.DECODE: 1.5}
    assert accounting.tokens(13) == {Phase.PREFILL: 0, Phase.DECODE: 8}


def test_recomputation_after_preemption_is_accounted_once_and_as_decode() -> None:
    """A limit (README): vLLM counts it as generated, and speculation looks the same."""
    decode = {"generation_requests": 20, "generation_tokens": 20}
    recompute = {"generation_requests": 20, "generation_tokens": 819}
    accounting, seconds = _book([decode, decode | {"preemptions": 1}, recompute, decode])

    assert seconds == {Phase.PREFILL: 0, Phase.DECODE: 2}
    assert accounting.tokens(14)[Phase.PREFILL] == 0


def test_speculated_tokens_are_decode() -> None:
    speculated = {"generation_requests": 5, "generation_tokens": 20}
    chunk = {"context_requests": 1, "context_tokens": 60, "computed_tokens": 60}
    accounting, seconds = _book([speculated, speculated | chunk])

    assert seconds == {Phase.PREFILL: 0.375, Phase.DECODE: 0.625}
    assert accounting.tokens(12) == {Phase.PREFILL: 60, Phase.DECODE: 40}


def test_data_parallel_ranks_that_step_together_share_their_devices() -> None:
    """Each rank has a stream of its own; their numbers and losses have nothing to do with others'.

    One rank prefills while the other decodes: each has half of every device of the worker.
    """
    accounting = NodeAccounting(gpus=2)
    ranks = [StepReporter(index=0), StepReporter(index=1)]
    accounting.engine()
    for rank in ranks:
        accounting.beat(rank, 0)
    for t in range(1, 11):
        accounting.step(ranks[0], ranks[0].prefill(t, 0.5))
        lost = ranks[1].decode(t, 0.5)
        if t != 5:
            accounting.step(ranks[1], lost)
        accounting.step(ranks[0], ranks[0].prefill(t + 0.5, 0.5))
        accounting.step(ranks[1], ranks[1].decode(t + 0.5, 0.5))

    seconds = _settled(accounting, ranks, 10.5)

    assert seconds == {Phase.PREFILL: 10, Phase.DECODE: 10}
    assert accounting.lost(20.5) == 1
    assert accounting.tokens(20.5) == {Phase.PREFILL: 2000, Phase.DECODE: 20}


def test_a_lone_data_parallel_rank_counts_on_all_devices_of_its_worker() -> None:
    """A limit (README), where it is not known which devices are its rank's."""
    accounting, rank = NodeAccounting(gpus=2), StepReporter(index=1)
    accounting.engine()
    accounting.beat(rank, 0)
    accounting.step(rank, rank.decode(2, 1))

    assert _settled(accounting, [rank], 2) == {Phase.PREFILL: 0, Phase.DECODE: 2}


def test_a_data_parallel_rank_holds_its_own_devices_where_they_are_known() -> None:
    """Two ranks on four devices: one prefills on the first two, one decodes on the others."""
    accounting, ranks = NodeAccounting(gpus=4), [StepReporter(index=0), StepReporter(index=1)]
    accounting.engine(ranks=2)
    for rank in ranks:
        accounting.beat(rank, 0)
    accounting.step(ranks[0], ranks[0].prefill(2, 1))
    accounting.step(ranks[1], ranks[1].decode(2, 0.5))
    gpus, _ = accounting.ledger.fast_gauges(ns(2))

    seconds = _settled(accounting, ranks, 2)

    assert seconds == {Phase.PREFILL: 2, Phase.DECODE: 1}
    assert [accounting.seconds(gpu).get("prefill", 0) for gpu in accounting.gpus] == [1, 1, 0, 0]
    assert [accounting.seconds(gpu).get("decode", 0) for gpu in accounting.gpus] == [0, 0, 0.5, 0.5]
    # Over the last two seconds: twice the longest step.
    assert {told.phase: told.gpus for told in gpus} == {Phase.PREFILL: 1, Phase.DECODE: 0.5}


def test_late_step_time_of_a_rank_is_paid_by_its_own_devices() -> None:
    """A step that comes too late for its place."""
    accounting, rank = NodeAccounting(gpus=2), StepReporter(index=1)
    accounting.engine(ranks=2)
    for t in range(20):
        accounting.beat(rank, t)
        accounting.advance(t)
    accounting.step(rank, rank.prefill(20, 10))

    assert _settled(accounting, [rank], 20)[Phase.PREFILL] == 10
    assert [accounting.seconds(gpu).get("prefill", 0) for gpu in accounting.gpus] == [0, 10]


@pytest.mark.parametrize(
    ("ranks", "rank", "devices"),
    [(1, 3, "abcd"), (2, 0, "ab"), (2, 1, "cd"), (4, 3, "d"), (3, 0, "abcd"), (2, 2, "abcd")],
)
def test_devices_are_divided_among_ranks_or_all_held_if_they_do_not_fit(
    ranks: int, rank: int, devices: str
) -> None:
    engine = Assignment("e", Role.MIXED, tuple("abcd"), EngineState.READY, 0, ranks=ranks)

    assert engine.of_rank(rank) == tuple(devices)


def test_steps_reported_by_several_api_servers_are_counted_once() -> None:
    """Each API server numbers the records that it makes; together they are the engine's steps."""
    accounting = NodeAccounting()
    servers = [StepReporter(pid=1), StepReporter(pid=2), StepReporter(pid=3)]
    accounting.engine()
    for server in servers:
        accounting.beat(server, 0)
    rng = random.Random(1)
    told: list[tuple[StepReporter, Step]] = []
    for number in range(1, 101):
        server = rng.choice(servers)
        step = server.prefill if number % 4 == 0 else server.decode
        told.append((server, step(number / 10, 0.1)))
    for server, step in told + told:
        accounting.step(server, step, now=11)

    seconds = _settled(accounting, servers, 10)

    assert seconds == {Phase.PREFILL: 2.5, Phase.DECODE: 7.5}
    assert (accounting.lost(20), accounting.late(20)) == (0, 100)


@pytest.mark.parametrize("gpus", [1, 2, 8], ids=["one device", "TP 2", "TP 4 by PP 2"])
@pytest.mark.parametrize("overlapped", [False, True], ids=["async off", "async on"])
def test_a_step_holds_its_whole_group_with_async_scheduling_on_or_off(
    gpus: int, overlapped: bool
) -> None:
    """Overlapped, `elapsed` is only the wait for the output: spans reach from record to record."""
    accounting, reporter = NodeAccounting(gpus=gpus), StepReporter()
    accounting.engine()
    accounting.beat(reporter, 0, overlapped=overlapped)
    elapsed = 0.02 if overlapped else 0.2
    busy = {"running": 5}
    accounting.step(reporter, reporter.prefill(1, 0.2, **busy))
    for number in range(1, 20):
        step = reporter.prefill if number % 5 == 0 else reporter.decode
        accounting.step(reporter, step(1 + number * 0.2, elapsed, **busy if number < 19 else {}))
    accounting.beat(reporter, 15, overlapped=overlapped)
    accounting.advance(15)

    assert accounting.engine_seconds(15) == {Phase.PREFILL: 0.8 * gpus, Phase.DECODE: 3.2 * gpus}
    assert accounting.seconds(f"g{gpus - 1}")["decode"] == 3.2
    assert accounting.unbalanced() == []
