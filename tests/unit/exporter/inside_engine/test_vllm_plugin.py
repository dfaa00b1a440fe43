"""The vLLM plugin against fake stats: what it sends, what it hides, and that it never raises."""

from __future__ import annotations

import gzip
import importlib
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from disagg_exporter.inside_engine.disagg_steps import wire
from support.steps import BareDaemon, iteration_details, iteration_stats, scheduler_stats

CAPTURES = Path(__file__).parents[3] / "data" / "vllm-0.32.0"
PLUGIN = "disagg_exporter.inside_engine.disagg_steps.vllm"
LINE = "%sIteration(%d): %d context requests, %d context tokens"


def vllm_config(
    *,
    details: bool = True,
    async_scheduling: bool = False,
    stages: int = 1,
    speculative_tokens: int = 0,
    executor: object = "mp",
    servers: int = 1,
) -> SimpleNamespace:
    return SimpleNamespace(
        num_speculative_tokens=speculative_tokens,
        scheduler_config=SimpleNamespace(async_scheduling=async_scheduling),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=stages,
            distributed_executor_backend=executor,
            _api_process_count=servers,
        ),
        observability_config=SimpleNamespace(enable_logging_iteration_details=details),
    )


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plugin module, imported with a stub in place of vLLM."""
    stub = ModuleType("vllm.v1.metrics.loggers")
    stub.StatLoggerBase = type("StatLoggerBase", (), {})  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    monkeypatch.delitem(sys.modules, PLUGIN, raising=False)
    module = importlib.import_module(PLUGIN)
    monkeypatch.setitem(sys.modules, PLUGIN, module)
    return module


@pytest.fixture
def iteration_logger() -> Iterator[logging.Logger]:
    loggers = [logging.getLogger(name) for name in ("vllm.v1.metrics.loggers", "uvicorn.access")]
    before = [list(logger.filters) for logger in loggers]
    yield loggers[0]
    for logger, filters in zip(loggers, before, strict=True):
        logger.filters[:] = filters


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BareDaemon]:
    bare = BareDaemon(tmp_path / "s")
    monkeypatch.setenv(wire.SOCKET_ENVIRONMENT, str(bare.path))
    yield bare
    bare.die()


@pytest.fixture
def start(
    plugin: Any,
    daemon: BareDaemon,
    iteration_logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Any]]:
    """Make a logger as vLLM does; return it, connected, and its hello. Closes it in the end.

    Its calls come so far apart that each is sent at once.
    """
    made: list[Any] = []
    seconds = itertools.count(time.monotonic_ns() // 10**9 + 100)
    monkeypatch.setattr(plugin, "monotonic_ns", lambda: next(seconds) * 10**9)
    # One beat on this thread: a step made between hello and the end of a beat would be a drop.
    monkeypatch.setattr(plugin.Sender, "start", plugin.Sender.beat)

    def build(config: object, engine_index: int = 0) -> tuple[Any, wire.Record]:
        made.append(plugin.StepsLogger(config, engine_index))
        daemon.accept()
        return made[-1], daemon.hear()

    yield build
    for logger in made:
        logger.close()


def steps_of(daemon: BareDaemon) -> list[wire.Record]:
    return [record for record in daemon.hear_all() if record.kind == wire.STEP]


def test_a_step_is_sent_with_all_its_counts(daemon: BareDaemon, start: Callable[..., Any]) -> None:
    logger, _hello = start(vllm_config(speculative_tokens=1), 2)
    details = iteration_details((1, 512), (7, 8), elapsed_ms=22.5, encoder_inputs=3)
    stats = scheduler_stats(details, running=8, waiting=4, deferred=2, kv=0.25)

    logger.record(stats, iteration_stats(computed=500, cached=12, external=6, preempted=1), None, 2)

    (step,) = steps_of(daemon)
    assert (step.engine_index, step.sequence, step.flags) == (2, 1, 0)
    assert step.elapsed_ns == 22_500_000
    assert (step.context_requests, step.context_tokens) == (1, 512)
    assert (step.generation_requests, step.generation_tokens) == (7, 8)
    assert (step.computed_tokens, step.cached_tokens, step.external_tokens) == (500, 12, 6)
    assert (step.running, step.waiting, step.deferred, step.kv_usage_ratio) == (8, 4, 2, 0.25)
    assert (step.encoder_inputs, step.preemptions) == (3, 1)
    assert (step.steps_mixed, step.prefill_tokens, step.decode_tokens) == (1, 512, 8)


# Its totals add up the time that the engine was held, not the waits that its steps report.
OVERLAPPED = wire.OVERLAPPED | wire.HELD_TOTALS


@pytest.mark.parametrize(
    ("config", "flags"),
    [
        (vllm_config(), 0),
        (vllm_config(async_scheduling=True), OVERLAPPED),
        (vllm_config(stages=2), OVERLAPPED),
        # One GPU: the engine launches the kernels itself, and only then begins to time its wait.
        (vllm_config(executor="uni"), OVERLAPPED),
        (vllm_config(executor=object()), 0),
        # Another server may have had the record before ours.
        (vllm_config(async_scheduling=True, servers=2), wire.OVERLAPPED),
        (vllm_config(details=False), wire.NO_DETAILS),
        (vllm_config(details=False, async_scheduling=True), OVERLAPPED | wire.NO_DETAILS),
        (SimpleNamespace(), wire.NO_DETAILS),
    ],
)
def test_the_hello_has_the_flags_of_the_steps(
    config: object, flags: int, start: Callable[..., Any]
) -> None:
    _logger, hello = start(config)

    assert (hello.kind, hello.flags) == (wire.HELLO, flags)


def test_the_hello_contains_the_engines_step_limits(start: Callable[..., Any]) -> None:
    config = vllm_config()
    config.scheduler_config.max_num_batched_tokens = 8192
    config.scheduler_config.max_num_seqs = 64
    _logger, hello = start(config)

    assert hello.flags == wire.LIMITS
    assert (hello.context_tokens, hello.generation_requests) == (8192, 64)


@pytest.mark.parametrize("tokens", [None, 0, -1, 2**40, "many"])
def test_impossible_limits_are_not_sent(tokens: object, start: Callable[..., Any]) -> None:
    config = vllm_config()
    config.scheduler_config.max_num_batched_tokens = tokens
    config.scheduler_config.max_num_seqs = 64
    _logger, hello = start(config)

    assert (hello.flags, hello.context_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("asynchronous", "stages", "ahead"), [(True, 1, True), (False, 1, False), (True, 2, False)]
)
def test_an_engine_with_async_scheduling_launches_the_next_step_first(
    asynchronous: bool, stages: int, ahead: bool, plugin: Any
) -> None:
    config = vllm_config(async_scheduling=asynchronous, stages=stages)

    assert plugin.launches_ahead(config) is ahead
    assert plugin.launches_ahead(SimpleNamespace()) is False


def test_a_prompt_is_not_older_than_the_engine(
    daemon: BareDaemon, start: Callable[..., Any]
) -> None:
    """Whatever times another version of vLLM reports."""
    logger, hello = start(vllm_config(executor="uni"))
    stats = scheduler_stats(iteration_details((1, 1000), (0, 0), elapsed_ms=2.0), running=0)
    told = iteration_stats(computed=1000)
    told.finished_requests = [SimpleNamespace(num_generation_tokens=1, prefill_time=1e9)]

    logger.record(stats, told)

    (step,) = steps_of(daemon)
    assert step.ns_context == max(step.t_ns - hello.incarnation, 2_000_000)


def test_a_prompt_after_a_rest_holds_its_gpu_from_its_scheduling(
    daemon: BareDaemon, start: Callable[..., Any]
) -> None:
    logger, _hello = start(vllm_config(executor="uni"))
    ended = SimpleNamespace(num_generation_tokens=1, prefill_time=0.027)

    for _ in range(2):
        stats = scheduler_stats(iteration_details((1, 1000), (0, 0), elapsed_ms=2.0), running=0)
        told = iteration_stats(computed=1000)
        told.finished_requests = [ended]
        logger.record(stats, told)

    steps = steps_of(daemon)
    assert [step.elapsed_ns for step in steps] == [27_000_000] * 2
    assert [step.ns_context for step in steps] == [27_000_000, 54_000_000]


@pytest.mark.parametrize(
    ("generation", "speculative_tokens", "told"),
    [
        pytest.param((8, 8), 0, (0, 0, 8), id="each a token"),
        pytest.param((8, 519), 0, (1, 511, 8), id="512 tokens anew of one among eight"),
        pytest.param((1, 300), 0, (1, 299, 1), id="alone"),
        pytest.param((8, 32), 3, (0, 0, 32), id="speculation to be verified"),
        pytest.param((8, 540), 3, (1, 508, 32), id="more than can be verified"),
    ],
)
def test_recomputation_after_preemption_is_prompt_work(
    generation: tuple[int, int],
    speculative_tokens: int,
    told: tuple[int, int, int],
    daemon: BareDaemon,
    start: Callable[..., Any],
) -> None:
    """A4: vLLM counts it among the generation tokens."""
    logger, _hello = start(vllm_config(speculative_tokens=speculative_tokens))

    logger.record(scheduler_stats(iteration_details((0, 0), generation, elapsed_ms=1)), None)

    (step,) = steps_of(daemon)
    assert (step.context_requests, step.context_tokens, step.generation_tokens) == told
    assert (step.prefill_tokens, step.decode_tokens) == told[1:]
    assert step.generation_requests == generation[0]


def test_recomputation_beside_a_prompt_is_prompt_work_too(
    daemon: BareDaemon, start: Callable[..., Any]
) -> None:
    logger, _hello = start(vllm_config())

    logger.record(scheduler_stats(iteration_details((1, 100), (4, 60), elapsed_ms=1)), None)

    (step,) = steps_of(daemon)
    assert (step.context_requests, step.context_tokens, step.generation_tokens) == (2, 156, 4)
    assert step.steps_mixed == 1


@pytest.mark.parametrize("tokens", [None, "two", object()])
def test_with_unknown_speculation_all_tokens_are_generated(
    tokens: Any, daemon: BareDaemon, start: Callable[..., Any]
) -> None:
    config = vllm_config()
    config.num_speculative_tokens = tokens
    logger, _hello = start(config)

    logger.record(scheduler_stats(iteration_details((0, 0), (8, 519), elapsed_ms=1)), None)

    (step,) = steps_of(daemon)
    assert (step.context_tokens, step.decode_tokens) == (0, 519)


def test_requests_in_flight_come_from_the_engine_being_created(
    daemon: BareDaemon, start: Callable[..., Any]
) -> None:
    class Engine:
        def __init__(self) -> None:
            self.output_processor = OutputProcessor()
            self.hello = start(vllm_config())[1]

    class OutputProcessor:
        request_states: ClassVar[dict[str, object]] = {"a": object(), "b": object()}

    engine = Engine()

    assert (engine.hello.flags, engine.hello.context_requests) == (wire.IN_FLIGHT, 2)


def test_a_dummy_step_is_marked(daemon: BareDaemon, start: Callable[..., Any]) -> None:
    logger, _hello = start(vllm_config())

    logger.record(scheduler_stats(iteration_details(elapsed_ms=5, dummy=True)), None)

    (step,) = steps_of(daemon)
    assert (step.flags, step.steps_dummy, step.elapsed_ns) == (wire.DUMMY, 1, 5_000_000)


def test_state_without_a_step_is_sent_only_when_it_changes(
    daemon: BareDaemon, start: Callable[..., Any]
) -> None:
    """A decode engine that waits for KV reports thousands of times a second without a change."""
    logger, _hello = start(vllm_config())

    for _ in range(50):
        logger.record(scheduler_stats(deferred=3, kv=0.5), None)
    for _ in range(50):
        logger.record(scheduler_stats(deferred=2, kv=0.501), iteration_stats())

    told = steps_of(daemon)
    assert [(step.sequence, step.deferred) for step in told] == [(1, 3), (2, 2)]
    assert {(step.elapsed_ns, step.context_tokens, step.steps_generation) for step in told} == {
        (0, 0, 0)
    }


@pytest.mark.parametrize(
    "news",
    [
        (scheduler_stats(running=1), None),
        (scheduler_stats(waiting=1), None),
        (scheduler_stats(deferred=1), None),
        (scheduler_stats(kv=0.02), None),
        (scheduler_stats(), iteration_stats(computed=1)),
        (scheduler_stats(), iteration_stats(cached=1)),
        (scheduler_stats(), iteration_stats(external=1)),
        (scheduler_stats(), iteration_stats(preempted=1)),
    ],
)
def test_every_kind_of_change_is_sent(
    news: tuple[Any, Any], daemon: BareDaemon, start: Callable[..., Any]
) -> None:
    logger, _hello = start(vllm_config(details=False))
    logger.record(scheduler_stats(), None)

    logger.record(*news)

    assert len(steps_of(daemon)) == 2


def test_the_end_of_all_requests_is_sent_without_a_step(
    daemon: BareDaemon, start: Callable[..., Any]
) -> None:
    """After an abort: otherwise the engine would look busy for ever (A6)."""
    logger, _hello = start(vllm_config())
    logger.record(scheduler_stats(iteration_details((1, 9), elapsed_ms=1), running=1), None)

    logger.record(scheduler_stats(running=0), None)

    assert [step.running for step in steps_of(daemon)] == [1, 0]


def test_no_scheduler_stats_are_no_record(daemon: BareDaemon, start: Callable[..., Any]) -> None:
    logger, _hello = start(vllm_config())

    logger.record(None, iteration_stats(computed=5))

    assert steps_of(daemon) == []


def test_stats_of_another_version_without_our_fields_count_as_nothing(
    daemon: BareDaemon, start: Callable[..., Any]
) -> None:
    logger, _hello = start(vllm_config())
    stats = SimpleNamespace(iteration_details=SimpleNamespace(elapsed_ms=2, num_ctx_tokens=None))

    logger.record(stats, SimpleNamespace(), None, engine_idx=0, something_new=1)

    (step,) = steps_of(daemon)
    assert (step.elapsed_ns, step.context_tokens, step.running) == (2_000_000, 0, 0)


@pytest.mark.parametrize("elapsed_ms", ["soon", float("nan"), 1e30])
def test_unreadable_stats_are_a_drop_and_never_an_error(
    elapsed_ms: Any, daemon: BareDaemon, start: Callable[..., Any]
) -> None:
    logger, _hello = start(vllm_config())

    logger.record(scheduler_stats(iteration_details(elapsed_ms=elapsed_ms)), None)
    logger.record(scheduler_stats(iteration_details((0, 0), (1, 1), elapsed_ms=1)), None)

    (step,) = steps_of(daemon)
    assert (step.drops, step.steps_generation, step.ns_generation) == (1, 1, 1_000_000)


def test_a_negative_step_duration_is_sent_as_0(
    daemon: BareDaemon, start: Callable[..., Any]
) -> None:
    logger, _hello = start(vllm_config())

    logger.record(scheduler_stats(iteration_details((0, 0), (1, 1), elapsed_ms=-3)), None)

    assert [step.elapsed_ns for step in steps_of(daemon)] == [0]


def test_a_captured_decode_engine_computed_no_prefill_token(
    daemon: BareDaemon, start: Callable[..., Any]
) -> None:
    """121 requests came with their KV; 121 one-token recomputes and 1699 generated tokens."""
    logger, _hello = start(vllm_config())
    lines = gzip.decompress((CAPTURES / "nixl_decode.steps.jsonl.gz").read_bytes()).splitlines()
    rows = [row for row in map(json.loads, lines) if "it" in row]

    for row in rows:
        _, contexts, context_tokens, generations, generated, elapsed_ms = row["it"]
        details = iteration_details(
            (contexts, context_tokens), (generations, generated), elapsed_ms=elapsed_ms
        )
        logger.record(
            scheduler_stats(details, running=row["run"], deferred=row["skip"], kv=row["kv"]),
            iteration_stats(computed=row["computed"], external=row["ext"]),
        )

    last = steps_of(daemon)[-1]
    assert (last.sequence, last.steps_generation) == (len(rows), len(rows))
    assert (last.prefill_tokens, last.decode_tokens) == (0, 121 + 1699)
    assert last.ns_generation == sum(int(row["it"][5] * 1_000_000) for row in rows)


def test_only_the_log_line_per_step_is_hidden(
    start: Callable[..., Any], iteration_logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    start(vllm_config(), 0)
    start(vllm_config(), 1)

    with caplog.at_level(logging.INFO):
        iteration_logger.info(LINE, "Engine 000: ", 7, 1, 512)
        iteration_logger.info("Avg prompt throughput: %.1f tokens/s", 3.0)
        iteration_logger.info({"no": "text"})

    assert caplog.messages == ["Avg prompt throughput: 3.0 tokens/s", "{'no': 'text'}"]
    assert len(iteration_logger.filters) == 1


ACCESS = '%s - "%s %s HTTP/%s" %d'


def test_successful_probes_are_not_in_the_access_log(
    start: Callable[..., Any], iteration_logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    start(vllm_config(), 0)
    start(vllm_config(), 1)
    access = logging.getLogger("uvicorn.access")

    with caplog.at_level(logging.INFO):
        for method, path, status in (
            *(("GET", "/health", 200), ("GET", "/metrics?x=1", 200), ("GET", "/v1/models", 200)),
            *(("GET", "/health", 503), ("POST", "/v1/completions", 200)),
        ):
            access.info(ACCESS, "127.0.0.1:1", method, path, "1.1", status)
        access.info("another %s", "line")

    assert caplog.messages == [
        '127.0.0.1:1 - "GET /health HTTP/1.1" 503',
        '127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200',
        "another line",
    ]
    assert len(access.filters) == 1


def test_the_log_line_per_step_can_be_kept(
    start: Callable[..., Any], iteration_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISAGG_KEEP_ITERATION_LOG", "1")

    start(vllm_config())

    assert iteration_logger.filters == []


def test_without_a_socket_the_plugin_is_inert(
    plugin: Any, iteration_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(wire.SOCKET_ENVIRONMENT, raising=False)

    logger = plugin.StepsLogger(vllm_config())
    logger.log_engine_initialized()
    logger.record(scheduler_stats(iteration_details(elapsed_ms="never read")), None)  # type: ignore[arg-type]
    logger.close()

    assert iteration_logger.filters == []


def test_an_engine_starts_even_when_the_plugin_cannot(
    plugin: Any,
    iteration_logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(wire.SOCKET_ENVIRONMENT, "/nowhere")

    def no_thread(_sender: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(plugin.Sender, "start", no_thread)

    logger = plugin.StepsLogger(vllm_config())
    logger.record(scheduler_stats(iteration_details(elapsed_ms=1)), None)

    assert "can't start new thread" in caplog.text
    assert iteration_logger.filters == []


def test_quick_steps_are_sent_together_without_unchanged_states(
    plugin: Any,
    daemon: BareDaemon,
    start: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logger, _hello = start(vllm_config())
    monkeypatch.setattr(plugin, "monotonic_ns", lambda: 5)
    logger.record(scheduler_stats(iteration_details((1, 9), elapsed_ms=1), running=1), None)
    told_at_once = len(steps_of(daemon))

    for _ in range(2):
        logger.record(scheduler_stats(iteration_details((0, 0), (1, 1), elapsed_ms=1)), None)
        logger.record(scheduler_stats(), None)
    logger.close()

    assert told_at_once == 1
    assert [(step.sequence, step.steps_generation) for step in steps_of(daemon)] == [(2, 1), (3, 2)]
