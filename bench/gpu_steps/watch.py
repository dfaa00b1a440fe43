"""What a vLLM engine does in each step: its work as scheduled, and its times."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any


@dataclass(slots=True)
class WatchedStep:
    """One step; `*_tokens` and `*_pairs` count tokens and pairs of tokens in its attention.

    `step_us` is the time of the whole step, scheduling and output included; `iteration_us` is what
    vLLM itself reports as the iteration's time. `context_past_tokens` were computed before this
    step (cached, or in earlier pieces); requests that decode read `generation_kv_tokens`.
    """

    part: str = ""
    t_us: int = 0
    step_us: int = 0
    iteration_us: int = 0
    context_requests: int = 0
    context_tokens: int = 0
    context_past_tokens: int = 0
    context_pairs: int = 0
    cached_tokens: int = 0
    generation_requests: int = 0
    generation_kv_tokens: int = 0
    running: int = 0
    waiting: int = 0

    @property
    def seconds(self) -> float:
        """Its time, from scheduling to output."""
        return self.step_us / 1e6


COLUMNS = tuple(field.name for field in fields(WatchedStep))


class StepWatch:
    """Wraps an engine core that runs in this process and schedules synchronously."""

    def __init__(self, core: Any) -> None:
        self.steps: list[WatchedStep] = []
        self.part = ""
        self.begun_ns = time.monotonic_ns()
        self._core = core
        self._scheduler = core.scheduler
        self._now = WatchedStep()
        schedule, step = core.scheduler.schedule, core.step_fn
        self._schedule, self._step = schedule, step
        core.scheduler.schedule = self._scheduled
        core.step_fn = self._stepped
        core.capture_iteration_details = self._timed

    def _scheduled(self, *args: Any, **kwargs: Any) -> Any:
        output = self._schedule(*args, **kwargs)
        step = self._now
        step.running = len(self._scheduler.running)
        step.waiting = len(self._scheduler.waiting)
        add_work(step, output)
        return output

    @contextlib.contextmanager
    def _timed(self, _output: Any) -> Iterator[None]:
        begun_ns = time.monotonic_ns()
        yield
        self._now.iteration_us = (time.monotonic_ns() - begun_ns) // 1000

    def _stepped(self) -> Any:
        step = self._now = WatchedStep(part=self.part)
        begun_ns = time.monotonic_ns()
        result = self._step()
        step.step_us = (time.monotonic_ns() - begun_ns) // 1000
        step.t_us = (begun_ns - self.begun_ns) // 1000
        if step.context_tokens or step.generation_requests:
            self.steps.append(step)
        return result


def add_work(step: WatchedStep, output: Any) -> None:
    """Add what vLLM's scheduler put into a step (its `SchedulerOutput`)."""
    tokens = output.num_scheduled_tokens
    for new in output.scheduled_new_reqs:
        step.cached_tokens += new.num_computed_tokens
        _add_context(step, tokens[new.req_id], new.num_computed_tokens)
    cached = output.scheduled_cached_reqs
    for name, past in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        if cached.is_context_phase(name):
            _add_context(step, tokens[name], past)
        else:
            step.generation_requests += 1
            step.generation_kv_tokens += past + tokens[name]


def _add_context(step: WatchedStep, tokens: int, past: int) -> None:
    step.context_requests += 1
    step.context_tokens += tokens
    step.context_past_tokens += past
    step.context_pairs += tokens * past + tokens * (tokens + 1) // 2
