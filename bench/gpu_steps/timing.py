"""How long each step of a served engine held its GPU, as the GPU itself says: CUDA events.

vLLM loads `watch_worker` as a general plugin (`install`). It records an event before the kernels of
each step and one after; the engine is never waited for. The lines that it writes have the columns
of `bench.gpu_steps.watch`: `t_us` is the monotonic clock when the first event was reached, and
`step_us` the time between the two.
"""

from __future__ import annotations

import csv
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.gpu_steps.watch import COLUMNS, WatchedStep, add_work

FILE_VARIABLE = "GPU_STEP_TIMES"
"""The file to write, in the engine's environment."""

_ENTRY = "[vllm.general_plugins]\nbench_step_timing = bench.gpu_steps.timing:watch_worker\n"
_METADATA = "Metadata-Version: 2.1\nName: bench-step-timing\nVersion: 1\n"
_EVERY_SECONDS = 0.2
# elapsed_time is a float32 of milliseconds: 0.0005 ms over 5 s, 0.03 ms over 5 minutes.
_BASE_MS = 5000.0


class _Timed(NamedTuple):
    step: WatchedStep
    begun: Any
    ended: Any


def install(folder: Path) -> str:
    """Write what makes vLLM load the plugin; return the search path of the engine for it."""
    facts = folder / "bench_step_timing-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(_METADATA)
    (facts / "entry_points.txt").write_text(_ENTRY)
    return os.pathsep.join((str(folder), str(Path(__file__).parents[2])))


def watch_worker() -> None:
    """Time the steps of vLLM's GPU workers in this process."""
    from vllm.v1.worker.gpu_worker import Worker

    if not os.environ.get(FILE_VARIABLE) or hasattr(Worker, "step_timing"):
        return
    Worker.step_timing = _StepTiming(Path(os.environ[FILE_VARIABLE]))
    Worker.execute_model = _begins_step(Worker.execute_model)
    Worker.sample_tokens = _ends_step(Worker.sample_tokens)


def _begins_step(execute: Callable[..., Any]) -> Callable[..., Any]:
    def execute_model(worker: Any, scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        worker.step_timing.begin(scheduled)
        return execute(worker, scheduled, *args, **kwargs)

    return execute_model


def _ends_step(sample: Callable[..., Any]) -> Callable[..., Any]:
    def sample_tokens(worker: Any, *args: Any, **kwargs: Any) -> Any:
        output = sample(worker, *args, **kwargs)
        worker.step_timing.end()
        return output

    return sample_tokens


class _StepTiming:
    """Records events in the engine's thread; a thread of its own reads them when they are over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._now: tuple[WatchedStep, Any] | None = None
        self._open: deque[_Timed] = deque()
        self._base: tuple[Any, int] | None = None

    def begin(self, scheduled: Any) -> None:
        """Record the event before a step's kernels."""
        self._now = None
        if not scheduled.total_num_scheduled_tokens:
            return
        if self._base is None:
            self._start()
        step = WatchedStep()
        add_work(step, scheduled)
        self._now = step, _recorded()

    def end(self) -> None:
        """Record the one after them."""
        if self._now is not None:
            self._open.append(_Timed(*self._now, _recorded()))
            self._now = None

    def _start(self) -> None:
        base = _recorded()
        base.synchronize()
        self._base = base, time.monotonic_ns() // 1000
        threading.Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        with self._path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            while True:
                time.sleep(_EVERY_SECONDS)  # there is nothing to wait on but the events themselves
                while self._open and self._open[0].ended.query():
                    step = self._read(self._open.popleft())
                    writer.writerow([getattr(step, name) for name in COLUMNS])
                file.flush()

    def _read(self, timed: _Timed) -> WatchedStep:
        assert self._base is not None
        base, base_us = self._base
        since_ms = base.elapsed_time(timed.begun)
        timed.step.t_us = base_us + round(since_ms * 1e3)
        timed.step.step_us = round(timed.begun.elapsed_time(timed.ended) * 1e3)
        if since_ms > _BASE_MS:
            self._base = timed.begun, timed.step.t_us
        return timed.step


def _recorded() -> Any:
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
