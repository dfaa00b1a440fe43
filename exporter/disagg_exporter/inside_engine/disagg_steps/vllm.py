"""The vLLM plugin: a stat logger that reports every engine step to the node's daemon.

vLLM finds it by its entry point, creates one per data-parallel rank inside the API-server process
and calls `record` for each batch of engine outputs, on the thread that serves the requests. So it
must be quick, must not wait and must not raise; without a daemon it only counts. vLLM creates new
stats for each call and does not modify them later, so they are read later, several together.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from math import inf
from operator import attrgetter
from time import monotonic_ns
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from . import wire
from .counting import Facts
from .front_end import Requests, count_in_flight, find_requests, first_token_ns
from .held import leaves_work
from .sender import Sender, StepReport

KEEP_LOG_ENVIRONMENT = "DISAGG_KEEP_ITERATION_LOG"

# In the order of `Facts`, between the step's duration and its preemptions.
_DETAILS = (
    *("num_ctx_requests", "num_ctx_tokens", "num_generation_requests", "num_generation_tokens"),
    "num_encoder_inputs",
)
_PROMPTS = ("computed", "local_cache_hit", "external_kv_transfer")
_SCHEDULER = ("num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs", "kv_cache_usage")
_of_details = attrgetter("elapsed_ms", *_DETAILS)
_of_prompts = attrgetter(*(f"prompt_token_stats.{name}" for name in _PROMPTS))
_of_scheduler = attrgetter(*_SCHEDULER)
_new = tuple.__new__

# vLLM's executors that run the model in the engine's own process; "uni" is usual for one GPU.
_IN_PROCESS = ("uni", "external_launcher")
_ITERATION_LOGGER = "vllm.v1.metrics.loggers"
_ITERATION_LINE = "%sIteration(%d): "
_ACCESS_LOGGER = "uvicorn.access"
_ACCESS_ARGUMENTS = 5
_PROBED = ("/health", "/metrics", "/v1/models")
_OK = 200


class HideIterationLines(logging.Filter):
    """Drops the line that vLLM logs for every step once iteration details are switched on."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is not the line of a step."""
        message = record.msg
        return not (isinstance(message, str) and message.startswith(_ITERATION_LINE))


class HideProbeLines(logging.Filter):
    """Drops the server's log lines for successful requests that monitoring makes every second.

    The daemon's own probes were nine tenths of an idle engine's log.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is not uvicorn's line for such a request."""
        arguments = record.args
        if not isinstance(arguments, tuple) or len(arguments) != _ACCESS_ARGUMENTS:
            return True
        _client, method, path, _version, status = arguments
        return not (
            method == "GET"
            and isinstance(path, str)
            and path.partition("?")[0] in _PROBED
            and status == _OK
        )


class StepsLogger(StatLoggerBase):  # type: ignore[misc] # vLLM may not be installed where we check
    """One rank's step records; does nothing unless DISAGG_STEPS_SOCKET names a daemon's socket."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._sender: Sender | None = None
        self._reported: Facts | None = None
        self._most_tokens = most_tokens_of(vllm_config)
        self._requests: Requests = lambda: None
        self._awaits_first = True  # no prompt has had its first token since the engine rested
        path = os.environ.get(wire.SOCKET_ENVIRONMENT)
        if not path:
            return
        try:
            self._requests = find_requests()
            sender = Sender(
                path,
                engine_index,
                flags_of(vllm_config),
                read=self._read,
                in_flight=partial(count_in_flight, self._requests),
                limits=limits_of(vllm_config),
                late=launches_ahead(vllm_config),
                shared=has_several_servers(vllm_config),
            )
            sender.start()
            if os.environ.get(KEEP_LOG_ENVIRONMENT) != "1":
                hide_iteration_lines()
                hide_probe_lines()
        except Exception as error:  # noqa: BLE001 # an engine must start whatever ails its observer
            logging.getLogger(__name__).warning("disagg-node receives no steps: %r", error)
            return
        self._sender = sender

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
        **_later: Any,
    ) -> None:
        """Queue what vLLM reports of one step, or of the engine's state if no step was taken."""
        sender = self._sender
        if sender is None or scheduler_stats is None:
            return
        try:
            sender.keep(monotonic_ns(), scheduler_stats, iteration_stats)
        except Exception:  # noqa: BLE001 # it would end vLLM's output loop, and so the engine
            sender.drop()

    def log_engine_initialized(self) -> None:
        """Do nothing: the hello is sent when the daemon is found."""

    def close(self) -> None:
        """Disconnect for good. vLLM never calls this: the sender ends with the process."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def _read(self, scheduler_stats: Any, iteration_stats: Any) -> StepReport | None:
        """Return one step, or the engine's new state; None for a state that has not changed."""
        details = getattr(scheduler_stats, "iteration_details", None)
        facts = facts_of(scheduler_stats, iteration_stats, details)
        if facts.generation_tokens > self._most_tokens * facts.generation_requests:
            facts = with_recompute(facts, self._most_tokens)
        # An engine that waits for KV reports the same empty state thousands of times a second.
        if details is None and self._reported is not None and not is_news(facts, self._reported):
            return None
        last, self._reported = self._reported, facts
        if details is None:
            return _new(StepReport, (facts, False, False, 0))
        prompt_ns = 0
        if last is None or not leaves_work(last):
            self._awaits_first = True
        if self._awaits_first and facts.computed_tokens:
            self._awaits_first = False
            prompt_ns = self._prompt_ns(iteration_stats)
        return _new(StepReport, (facts, True, bool(getattr(details, "is_dummy", False)), prompt_ns))

    def _prompt_ns(self, iteration_stats: Any) -> int:
        """Return how long ago a request was scheduled that has its first token; 0 if unknown."""
        try:
            return first_token_ns(self._requests, iteration_stats.finished_requests)
        except Exception:  # noqa: BLE001 # another vLLM's stats: a step without it still counts
            return 0


def flags_of(vllm_config: Any) -> int:
    """Return the `wire` flags that apply to every record of this engine."""
    scheduler = getattr(vllm_config, "scheduler_config", None)
    parallel = getattr(vllm_config, "parallel_config", None)
    observability = getattr(vllm_config, "observability_config", None)
    flags = 0
    if _is_async(scheduler) or _stages(parallel) > 1 or _launches_itself(parallel):
        flags |= wire.OVERLAPPED
    if not getattr(observability, "enable_logging_iteration_details", False):
        flags |= wire.NO_DETAILS
    return flags


def launches_ahead(vllm_config: Any) -> bool:
    """Return whether the engine launches a step before it waits for the one before it."""
    scheduler = getattr(vllm_config, "scheduler_config", None)
    parallel = getattr(vllm_config, "parallel_config", None)
    return _is_async(scheduler) and _stages(parallel) == 1


def has_several_servers(vllm_config: Any) -> bool:
    """Return whether several API servers share the engine: any of them gets a step's record."""
    parallel = getattr(vllm_config, "parallel_config", None)
    return (getattr(parallel, "_api_process_count", 1) or 1) > 1


def _is_async(scheduler: Any) -> bool:
    return bool(getattr(scheduler, "async_scheduling", False))


def _stages(parallel: Any) -> int:
    return getattr(parallel, "pipeline_parallel_size", 1) or 1


def _launches_itself(parallel: Any) -> bool:
    """Return whether the engine's own process launches the kernels, before it times its wait."""
    return getattr(parallel, "distributed_executor_backend", None) in _IN_PROCESS


def limits_of(vllm_config: Any) -> tuple[int, int] | None:
    """Return the most tokens and requests that the engine takes into a step; None if not known."""
    try:
        scheduler = vllm_config.scheduler_config
        limits = int(scheduler.max_num_batched_tokens), int(scheduler.max_num_seqs)
    except Exception:  # noqa: BLE001 # an engine must start whatever another version has there
        return None
    return limits if all(0 < limit < 2**31 for limit in limits) else None


def most_tokens_of(vllm_config: Any) -> float:
    """Return how many tokens a request can generate in one step; inf if that is not known.

    It is one, plus those that are speculated, or denoised together, for verification.
    """
    try:
        return 1.0 + max(int(vllm_config.num_speculative_tokens), 0)
    except Exception:  # noqa: BLE001 # an engine must start whatever another version has there
        return inf


def with_recompute(facts: Facts, most_tokens: float) -> Facts:
    """Return a step's facts with recomputed tokens counted as prompt work.

    vLLM counts a preempted request among those that generate, with all tokens it recomputes. Tokens
    beyond `most_tokens` per request can be nothing else.
    """
    surplus = facts.generation_tokens - int(most_tokens * facts.generation_requests)
    return facts._replace(
        context_requests=facts.context_requests + 1,
        context_tokens=facts.context_tokens + surplus,
        generation_tokens=facts.generation_tokens - surplus,
    )


def facts_of(scheduler_stats: Any, iteration_stats: Any, details: Any) -> Facts:
    """Read the needed fields of vLLM's stats, which have no stable API: absent fields are 0."""
    try:
        # Each reads several fields in one call: every step of a busy engine passes here.
        elapsed_ms, *counts = _of_details(details)
        facts = *counts, *_of_prompts(iteration_stats), *_of_scheduler(scheduler_stats)
        preemptions = iteration_stats.num_preempted_reqs
        if elapsed_ms is not None and preemptions is not None and None not in facts:
            return _new(Facts, (max(0, int(elapsed_ms * 1_000_000)), *facts, preemptions))
    except AttributeError:
        pass  # no step, or another vLLM
    return _facts_one_by_one(scheduler_stats, iteration_stats, details)


def _facts_one_by_one(scheduler_stats: Any, iteration_stats: Any, details: Any) -> Facts:
    prompt = getattr(iteration_stats, "prompt_token_stats", None)
    sources = ((details, _DETAILS), (prompt, _PROMPTS), (scheduler_stats, _SCHEDULER))
    found = [getattr(source, name, 0) or 0 for source, names in sources for name in names]
    elapsed_ns = max(0, int((getattr(details, "elapsed_ms", 0) or 0) * 1_000_000))
    return Facts._make((elapsed_ns, *found, getattr(iteration_stats, "num_preempted_reqs", 0) or 0))


def is_news(facts: Facts, last: Facts) -> bool:
    """Return whether facts without a step differ from those reported last.

    An event always does; the state does when a count of requests or a whole percent of the KV cache
    differs.
    """
    if facts.computed_tokens or facts.cached_tokens or facts.external_tokens or facts.preemptions:
        return True
    return (
        facts.running != last.running
        or facts.waiting != last.waiting
        or facts.deferred != last.deferred
        or abs(facts.kv_usage_ratio - last.kv_usage_ratio) >= 0.01
    )


def hide_iteration_lines() -> None:
    """Keep vLLM's line per step out of the engine's log; one call serves all ranks."""
    logger = logging.getLogger(_ITERATION_LOGGER)
    if not any(isinstance(found, HideIterationLines) for found in logger.filters):
        logger.addFilter(HideIterationLines())


def hide_probe_lines() -> None:
    """Keep our own probes out of the engine's log; a filter survives uvicorn's configuration."""
    logger = logging.getLogger(_ACCESS_LOGGER)
    if not any(isinstance(found, HideProbeLines) for found in logger.filters):
        logger.addFilter(HideProbeLines())
