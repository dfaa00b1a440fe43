from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from disagg_exporter.capacity import CapacityModel
from disagg_exporter.capacity.curves.curve import LearnedLimits
from disagg_exporter.model import (
    Bottleneck,
    EngineCapacity,
    EnginePage,
    EngineState,
    EngineStatus,
    LimitConfidence,
    ModelSize,
    Role,
    Step,
    StepLimits,
    StreamKey,
)
from disagg_exporter.steps.rows import rows_of
from support.scripted_engine import SECOND_NS, ScriptedEngine

TARGET_SECONDS = 0.050
PREFILL_BASE, PREFILL_TOKEN = 0.010, 50e-6
DECODE_BASE, DECODE_REQUEST = 0.010, 0.0004
TARGET_BATCH = 100


class Node:
    """A `CapacityModel` with one engine whose steps a test sets; a second passes in each."""

    def __init__(self, role: Role = Role.DECODE, *, overlapped: bool = False) -> None:
        self.capacity_model = CapacityModel(TARGET_SECONDS)
        self.status = EngineStatus(
            "engine-0", role, "vllm", "", "llama", ("GPU-0",), EngineState.READY, True, "", ""
        )
        self.overlapped = overlapped
        self.engine = ScriptedEngine(self.hear)
        self._advanced_ns = self.engine.now_ns
        self.capacity_model.advance([self.status], self.engine.now_ns)

    def hear(self, key: StreamKey, step: Step, record: bool) -> None:
        if record:
            self.capacity_model.step(key, step, overlapped=self.overlapped)
        else:
            self.capacity_model.heartbeat(key, step)
        self.pass_time(step.t_ns)

    def pass_time(self, now_ns: int) -> None:
        while self._advanced_ns + SECOND_NS <= now_ns:
            self._advanced_ns += SECOND_NS
            self.capacity_model.advance([self.status], self._advanced_ns)

    def capacity(self) -> EngineCapacity:
        self.capacity_model.advance([self.status], self.engine.now_ns)
        (capacity,) = self.capacity_model.capacities([self.status])
        return capacity

    def prefill(self, tokens: int, **more: bool) -> None:
        self.engine.prefill(tokens, PREFILL_BASE + PREFILL_TOKEN * tokens, **more)

    def decode(self, batch: int, **more: int) -> None:
        self.engine.running = batch
        self.engine.decode(batch, DECODE_BASE + DECODE_REQUEST * batch, **more)

    def decode_for(self, batch: int, seconds: float) -> None:
        until_ns = self.engine.now_ns + seconds * SECOND_NS
        while self.engine.now_ns < until_ns:
            self.decode(batch)

    def learn_decode(self) -> None:
        for batch in (10, 20, 50, 80, 120, 200):
            self.decode_for(batch, 10)
        self.rest(65)

    def learn_prefill(self) -> None:
        for tokens in (100, 500, 2000, 4000, 8000) * 20:
            self.prefill(tokens)
        self.rest(65)

    def rest(self, seconds: int) -> None:
        self.engine.rest(seconds, beats=seconds)


def test_the_used_ratio_of_decode_is_its_batch_by_the_target_batch() -> None:
    """The engine steps all the time: busy is not full."""
    node = Node()
    node.learn_decode()

    node.decode_for(18, 70)
    capacity = node.capacity()

    assert capacity.decode is not None
    assert capacity.decode.requests == pytest.approx(TARGET_BATCH, rel=0.01)
    assert capacity.decode.confidence is LimitConfidence.BOTH
    assert capacity.used_ratio == pytest.approx(0.18, rel=0.02)


def test_an_engine_that_starts_with_nothing_has_no_limits() -> None:
    """As after a restart with other arguments: those before taught of another engine."""
    node = Node(Role.PREFILL)
    node.learn_prefill()
    node.learn_decode()
    known = node.capacity()

    node.capacity_model.restore_limits("engine-0", LearnedLimits(), node.engine.now_ns)

    assert known.prefill is not None
    assert node.capacity() == EngineCapacity("engine-0")


def test_an_engine_that_idles_half_of_the_time_uses_half() -> None:
    node = Node()
    node.learn_decode()

    for _ in range(40):
        node.decode_for(50, 1)
        node.rest(1)

    assert node.capacity().used_ratio == pytest.approx(0.25, rel=0.03)


def test_a_saturated_prefill_engine_is_full() -> None:
    """The knee is at nine tenths of the plateau, so beyond it an engine shows up to 1.11."""
    node = Node(Role.PREFILL)
    node.learn_prefill()

    node.engine.waiting = 5
    while node.capacity().used_ratio == 0 or node.engine.now_ns < 1_230 * SECOND_NS:
        node.prefill(8000)
    capacity = node.capacity()

    assert capacity.used_ratio == pytest.approx(1.11, rel=0.02)
    assert capacity.prefill is not None
    # 90 % of the 19,512 tokens/s of the largest steps seen.
    assert capacity.prefill.knee_tokens == pytest.approx(1440, rel=0.15)


def test_a_prompt_that_was_aborted_does_not_make_later_ones_look_cut_off() -> None:
    """Prompts of about one size, none of them cut: a larger step may be much faster."""
    node = Node(Role.MIXED)
    node.engine.rest(2)
    node.engine.running = 5
    node.prefill(440, prompt_ends=False)
    node.decode(5)
    for number in range(600):
        node.engine.running = 5
        node.prefill(250 + 7 * number % 190)
        node.decode(5)

    assert node.capacity().prefill is None


def test_an_idle_engine_has_a_ratio_of_0() -> None:
    """Heartbeats show that it is alive, so the 0 is known."""
    node = Node()
    node.learn_decode()

    node.rest(90)

    assert node.capacity().used_ratio == 0


def test_a_silent_engine_has_no_ratio() -> None:
    node = Node()
    node.learn_decode()

    node.capacity_model.advance([node.status], node.engine.now_ns + 29 * SECOND_NS)
    (talking,) = node.capacity_model.capacities([node.status])
    node.capacity_model.advance([node.status], node.engine.now_ns + 31 * SECOND_NS)
    (silent,) = node.capacity_model.capacities([node.status])

    assert talking.used_ratio == 0
    assert silent.used_ratio is None


def test_an_engine_stuck_in_a_step_has_no_ratio() -> None:
    """Its heartbeats continue, but its last record is more than a minute old."""
    node = Node()
    node.learn_decode()
    node.decode_for(50, 30)

    node.engine.hang(40, beats=40)
    busy = node.capacity()
    node.engine.hang(30, beats=30)
    stuck = node.capacity()

    assert busy.used_ratio == pytest.approx(0.25, rel=0.05)
    assert stuck.used_ratio is None


@pytest.mark.parametrize("state", [EngineState.STARTING, EngineState.DRAINING, EngineState.GONE])
def test_only_a_ready_engine_has_a_ratio(state: EngineState) -> None:
    node = Node()
    node.learn_decode()

    (capacity,) = node.capacity_model.capacities([replace(node.status, state=state)])

    assert capacity.used_ratio is None
    assert capacity.decode is not None


def test_no_capacity_is_known_before_enough_steps() -> None:
    node = Node()
    node.engine.rest(1)

    node.decode_for(18, 0.4)

    assert node.capacity() == EngineCapacity("engine-0")


def test_a_restart_keeps_the_limits_and_not_the_load() -> None:
    node = Node()
    node.learn_decode()
    node.decode_for(50, 70)
    before = node.capacity()

    node.engine.restart()
    node.rest(40)
    after = node.capacity()

    assert after.decode == before.decode
    assert after.used_ratio == 0


def test_requests_that_cannot_be_admitted_make_an_engine_full() -> None:
    """18 run because the engine may run no more (`--max-num-seqs`), and others wait."""
    node = Node()
    node.learn_decode()

    node.engine.waiting = 3
    node.decode_for(18, 70)

    assert node.capacity().used_ratio == pytest.approx(1.0, rel=0.01)


def test_waiting_for_the_current_step_does_not_make_an_engine_full() -> None:
    """Each new request waits once and is in the next step."""
    node = Node()
    node.learn_decode()

    for number in range(4_000):
        node.engine.waiting = number % 2
        node.decode(18)

    assert node.capacity().used_ratio == pytest.approx(0.18, rel=0.02)


def test_a_full_cache_makes_an_engine_full() -> None:
    node = Node()
    node.learn_decode()

    node.engine.kv_usage_ratio = 0.9
    node.decode_for(18, 70)

    assert node.capacity().used_ratio == pytest.approx(0.9, rel=0.01)


def test_an_engine_whose_cache_is_of_unknown_size_has_no_used_ratio() -> None:
    """As by FPM without a page: the cache may be full, whatever the batch."""
    node = Node()
    node.engine.kv_usage_ratio = None
    node.learn_decode()

    node.decode_for(18, 70)
    unknown = node.capacity()
    node.engine.kv_usage_ratio = 0.3
    node.decode_for(18, 70)

    assert unknown.decode is not None
    assert unknown.used_ratio is None
    assert node.capacity().used_ratio == pytest.approx(0.3, rel=0.01)


def test_a_mixed_engine_adds_up_both_phases() -> None:
    node = Node(Role.MIXED)
    node.learn_prefill()
    node.learn_decode()

    for _ in range(100):
        node.engine.running = 50
        node.engine.mixed(2000, 50, PREFILL_BASE + PREFILL_TOKEN * 2050)
        node.decode_for(50, 1 - 0.1125)
    capacity = node.capacity()

    assert capacity.prefill is not None
    expected = 2000 / capacity.prefill.tokens_per_second + 50 / TARGET_BATCH
    assert capacity.used_ratio == pytest.approx(expected, rel=0.03)


def test_ranks_are_averaged_and_learn_together() -> None:
    """Two data-parallel ranks, one with 40 requests and one idle."""
    node = Node()
    node.learn_decode()
    idle = ScriptedEngine(node.hear, engine_index=1, now_ns=node.engine.now_ns)

    for _ in range(80):
        node.decode_for(40, 1)
        idle.rest(1)
        idle.now_ns = node.engine.now_ns

    assert node.capacity().used_ratio == pytest.approx(0.2, rel=0.03)


def test_an_api_server_without_steps_is_no_rank() -> None:
    node = Node()
    node.learn_decode()
    other = ScriptedEngine(node.hear, pid=7, now_ns=node.engine.now_ns)

    for _ in range(80):
        node.decode_for(40, 1)
        other.now_ns = node.engine.now_ns
        other.hang(0.0)

    assert node.capacity().used_ratio == pytest.approx(0.4, rel=0.03)


def test_the_hosts_gap_counts_against_the_target() -> None:
    """A token takes a step and the gap: of 50 ms, 10 are the host's; 75 requests fit in 40."""
    node = Node()
    node.engine.gap_seconds = 0.010
    node.learn_decode()

    decode = node.capacity().decode

    assert decode is not None
    assert decode.requests == pytest.approx(75, rel=0.02)


@pytest.mark.parametrize("several", [False, True])
def test_an_engine_whose_records_go_to_several_servers_teaches_no_curve(several: bool) -> None:
    """Of two API servers each has half of the records: between two of its own lie two steps."""
    node = Node(overlapped=True)
    servers = [node.engine]
    if several:
        servers.append(ScriptedEngine(node.hear, pid=101))
    for server in servers:
        server.rest(1)
    now_ns = max(server.now_ns for server in servers)
    for number in range(1200):
        server = servers[number % len(servers)]
        batch = (10, 50, 120, 200)[number // 300]
        server.now_ns, server.running = now_ns, batch
        server.decode(batch, DECODE_BASE + DECODE_REQUEST * batch)
        now_ns = server.now_ns

    decode = node.capacity().decode

    assert (decode is None) is several


class SharedNode(Node):
    """A node whose engine has several API servers, which get its steps' records in turn."""

    def __init__(self, servers: int, role: Role, *, overlapped: bool = False) -> None:
        super().__init__(role, overlapped=overlapped)
        self.status = replace(self.status, model_size=ModelSize(1_000, 100, 2, 16))
        self._servers = [self.engine]
        self._servers += [ScriptedEngine(self.hear, pid=200 + n) for n in range(servers - 1)]
        for server in self._servers:
            server.rest(1)

    def take_turns(self, step: Callable[[], None], seconds: float) -> None:
        until_ns = self.engine.now_ns + seconds * SECOND_NS
        while self.engine.now_ns < until_ns:
            now_ns = self.engine.now_ns
            self._servers.append(self._servers.pop(0))
            self.engine = self._servers[0]
            self.engine.now_ns = now_ns
            step()

    def learn_decode(self) -> None:
        for batch in (10, 20, 50, 80, 120, 200):
            self.take_turns(partial(self.decode, batch), 10)


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_a_decode_engine_is_as_full_however_many_api_servers_report_it(servers: int) -> None:
    """Between two records of one server lie steps of others, which are no gap of the host."""
    node = SharedNode(servers, Role.DECODE)
    node.learn_decode()

    node.take_turns(lambda: node.decode(40), 70)
    capacity = node.capacity()

    assert capacity.decode is not None
    assert capacity.decode.requests == pytest.approx(TARGET_BATCH, rel=0.01)
    assert capacity.used_ratio == pytest.approx(0.4, rel=0.02)
    assert capacity.bottleneck is Bottleneck.NONE


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_the_tokens_of_all_api_servers_of_an_engine_add_up(servers: int, overlapped: bool) -> None:
    node = SharedNode(servers, Role.PREFILL, overlapped=overlapped)

    def prefill() -> None:
        node.engine.running = 1
        node.prefill(4000)

    node.take_turns(prefill, 70)

    rate = 4000 / (PREFILL_BASE + PREFILL_TOKEN * 4000)
    assert node.capacity().flops_per_second == pytest.approx(2 * 1_000 * rate, rel=0.02)


def test_a_former_process_of_an_engine_adds_nothing_to_its_load() -> None:
    node = Node()
    node.status = replace(node.status, model_size=ModelSize(1_000, 100, 2, 16))
    node.decode_for(40, 60)
    before = node.capacity().flops_per_second
    node.engine.restart()
    node.engine.now_ns += 10 * SECOND_NS
    node.engine.rest(1)
    node.decode_for(40, 15)

    assert before is not None
    after = node.capacity().flops_per_second
    assert after is not None
    assert after <= before


def test_for_an_overlapped_engine_the_time_between_records_counts() -> None:
    """Its `elapsed` is only a wait; records burst, and only their sums are right."""
    node = Node(overlapped=True)
    node.engine.rest(1)
    rng = random.Random(1)
    for batch in (10, 20, 50, 80, 120, 200):
        step_seconds = DECODE_BASE + DECODE_REQUEST * batch
        node.engine.running = batch
        for _ in range(200):
            late = rng.uniform(0, 3 * step_seconds)
            node.engine.decode(batch, 0.001)
            node.engine.now_ns += round((late + 1e-4) * SECOND_NS)
            for _ in range(2):
                node.engine.now_ns += round(1e-4 * SECOND_NS)
                node.engine.decode(batch, 0.0)
            left = 3 * step_seconds - 0.001 - late - 3e-4
            node.engine.now_ns += round(left * SECOND_NS)

    decode = node.capacity().decode

    assert decode is not None
    assert decode.requests == pytest.approx(TARGET_BATCH, rel=0.05)


def test_lost_records_are_recovered_from_the_totals() -> None:
    """Every second record was lost: the steps' mean time is still known."""
    node = Node()
    whole = node.hear
    count = 0

    def lossy(key: StreamKey, step: Step, record: bool) -> None:
        nonlocal count
        count += 1
        if not record or count % 2:
            whole(key, step, record)

    node.engine.hear = lossy
    node.learn_decode()
    node.decode_for(18, 70)
    capacity = node.capacity()

    assert capacity.decode is not None
    assert capacity.decode.requests == pytest.approx(TARGET_BATCH, rel=0.02)
    assert capacity.used_ratio == pytest.approx(0.18, rel=0.03)


def test_repeated_and_late_records_change_nothing() -> None:
    node, other = Node(), Node()
    told: list[tuple[StreamKey, Step]] = []

    def stutter(key: StreamKey, step: Step, record: bool) -> None:
        other.hear(key, step, record)
        if record:
            told.append((key, step))
            other.hear(key, step, True)
            other.hear(*told[max(len(told) - 3, 0)], True)

    for each, hear in ((node, node.hear), (other, stutter)):
        each.engine.hear = hear
        each.learn_decode()
        each.decode_for(18, 70)

    assert other.capacity() == node.capacity()


def test_records_in_packets_are_learned_like_single_ones() -> None:
    """With heartbeats and idle time between them, and other engines at the same time."""
    node, packets = Node(), Node()
    packet: list[Step] = []

    def gather(key: StreamKey, step: Step, record: bool) -> None:
        if record:
            packet.append(step)
        if packet and (not record or len(packet) == 9):
            packets.capacity_model.steps(key, rows_of(packet), overlapped=False)
            packets.capacity_model.steps(
                key._replace(engine="unknown"), rows_of(packet), overlapped=True
            )
            packet.clear()
        if not record:
            packets.capacity_model.heartbeat(key, step)
        packets.pass_time(step.t_ns)

    for each, hear in ((node, node.hear), (packets, gather)):
        each.engine.hear = hear
        each.learn_decode()
        each.learn_prefill()
        each.decode_for(18, 70)
        each.rest(5)
    one_by_one, together = node.capacity(), packets.capacity()

    assert one_by_one.decode is not None
    assert together.decode is not None
    assert together.used_ratio == pytest.approx(one_by_one.used_ratio, rel=0.01)
    assert together.decode.requests == pytest.approx(one_by_one.decode.requests, rel=0.01)
    assert together.prefill == one_by_one.prefill


def test_an_engine_with_another_model_is_learned_again() -> None:
    node = Node()
    node.learn_decode()

    node.status = replace(node.status, model_name="another")

    assert node.capacity() == EngineCapacity("engine-0")


def test_flops_and_bytes_per_second_follow_from_the_steps() -> None:
    """18 requests at 17.2 ms a step are 1,047 tokens in 58 steps a second."""
    node = Node()
    node.status = replace(
        node.status,
        model_size=ModelSize(1_000, 100, 2, 16),
        page=EnginePage("vllm", 0, kv_cache_tokens=400.0),
    )
    node.engine.rest(1)
    node.engine.kv_usage_ratio = 0.25

    node.decode_for(18, 70)
    capacity = node.capacity()

    assert capacity.flops_per_second == pytest.approx(2 * 1_100 * 18 / 0.0172, rel=0.01)
    assert capacity.bytes_per_second == pytest.approx((2 * 1_100 + 16 * 100) / 0.0172, rel=0.01)


def test_an_engine_has_a_used_ratio_again_after_silence() -> None:
    """Even if its first message is a record, and the next arrives seconds later."""
    node = Node()
    node.learn_decode()
    node.capacity_model.advance([node.status], node.engine.now_ns + 31 * SECOND_NS)
    node.engine.now_ns += 32 * SECOND_NS

    node.engine.running = 18
    for _ in range(40):
        node.engine.decode(18, 2.0)

    assert node.capacity().used_ratio is not None


def test_data_parallel_dummy_steps_are_no_load() -> None:
    node = Node()
    node.learn_decode()

    for _ in range(1_500):
        node.decode(40)
        node.engine.decode(0, 0.026, dummy=True, context_tokens=1)

    assert node.capacity().used_ratio == pytest.approx(0.2, rel=0.05)


def test_limits_come_from_the_engine_or_else_its_command() -> None:
    """Its hello may arrive before anything else is known of it."""
    node, key = Node(), StreamKey("engine-0", 1, 1, 0)
    node.status = replace(node.status, limits=StepLimits(None, 256))
    by_command = node.capacity().configured
    node.capacity_model.heartbeat(key, Step(0, 0, 0), StepLimits(8192, 64))
    node.capacity_model.heartbeat(key, Step(1, 0, 0))
    by_hello = node.capacity().configured
    node.capacity_model.advance([], node.engine.now_ns)
    forgotten = node.capacity().configured

    assert (by_command, by_hello) == (StepLimits(None, 256), StepLimits(8192, 64))
    assert forgotten == by_command
