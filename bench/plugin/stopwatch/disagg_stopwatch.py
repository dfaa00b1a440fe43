"""A vLLM plugin for the benchmark alone: it switches our code on and off in a running engine.

Off, the engine computes and logs no iteration details, and our plugin is not called; only its
heartbeat continues. The server switches after every stretch of a few equal steps without a prompt.
Each pair of stretches is one on and one off, in a random order. A line of $DISAGG_BENCH_STRETCHES
has the cost of one: pair, on or off, tokens generated, nanoseconds of CPU of all the server's
processes, and of our threads alone.

$DISAGG_BENCH_TIMES gets lines `what nanoseconds`, thread CPU time: each call of our record(), of
vLLM's count of an iteration and of its log line (which ours hides); and each step's length, as the
engine reports it.
"""

import functools
import mmap
import os
import random
import threading
import time

SWITCH_ENVIRONMENT = "DISAGG_BENCH_SWITCH"
STRETCHES_ENVIRONMENT = "DISAGG_BENCH_STRETCHES"
TIMES_ENVIRONMENT = "DISAGG_BENCH_TIMES"
_STRETCH_STEPS = 16
# By then, everything kept from the last stretch has been sent.
_SETTLING_STEPS = 4


class Lines:
    """Lines of a file, written in batches: a write costs more than what is timed."""

    def __init__(self, path, together):
        self._path = path
        self._together = together
        self._lines = []

    def add(self, *words):
        """Add one line."""
        self._lines.append(" ".join(map(str, words)) + "\n")
        if len(self._lines) >= self._together:
            lines, self._lines = self._lines, []
            with open(self._path, "a") as file:  # noqa: PTH123 # plain, as an engine should see it
                file.writelines(lines)


class Switch:
    """One byte that all processes of a server share."""

    def __init__(self, path):
        with open(path, "r+b") as file:  # noqa: PTH123 # as above
            self._byte = mmap.mmap(file.fileno(), 1)

    @property
    def is_on(self):
        """Return whether our code is on."""
        return self._byte[0] == 1

    def turn(self, on):
        """Switch everything on (1) or off (0), from the next step on."""
        self._byte[0] = on


class Stretches:
    """Switches after a number of steps, and records what the server used meanwhile."""

    def __init__(self, path, switch):
        self._lines = Lines(path, 2)
        self._switch = switch
        self._drawn = random.Random(0)
        self._pair, self._left = 0, [0]
        self._pids = ()
        self._begin(0)

    def step(self, iteration_stats):
        """Count one step."""
        tokens = iteration_stats.num_generation_tokens
        if iteration_stats.prompt_token_stats.total or tokens != self._batch:
            self._begin(tokens)
            return
        self._steps += 1
        if self._steps == 0:
            self._began_ns = self._cpu_ns()
        if self._steps < _STRETCH_STEPS:
            return
        spent_ns = (a - b for a, b in zip(self._cpu_ns(), self._began_ns, strict=True))
        on = int(self._switch.is_on)
        self._lines.add(self._pair, on, tokens * _STRETCH_STEPS, *spent_ns)
        if not self._left:
            self._pair += 1
            self._left = self._drawn.choice(([0, 1], [1, 0]))
        self._switch.turn(self._left.pop())
        self._begin(tokens)

    def _begin(self, batch):
        self._steps, self._batch = -_SETTLING_STEPS, batch

    def _cpu_ns(self):
        if not self._pids:
            names = os.listdir("/proc")  # noqa: PTH208 # plain, and only the names are wanted
            everybody = [int(name) for name in names if name.isdecimal()]
            self._pids = [pid for pid in everybody if os.getsid(pid) == os.getsid(0)]
        ours = [each for each in threading.enumerate() if each.name == "disagg-steps"]
        return (
            # The kernel's number for the CPU clock of a process.
            sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in self._pids),
            sum(time.clock_gettime_ns(time.pthread_getcpuclockid(each.ident)) for each in ours),
        )


def install():
    """Install switch and stopwatches in whichever of the engine's processes this is."""
    path = os.environ.get(SWITCH_ENVIRONMENT)
    if not path:
        return
    switch = Switch(path)
    times = Lines(os.environ[TIMES_ENVIRONMENT], 200)
    _in_the_engine(switch, times)
    _in_the_server(switch, times, Stretches(os.environ[STRETCHES_ENVIRONMENT], switch))


def _in_the_engine(switch, times):
    from vllm.v1.engine import core

    _time(core, "compute_iteration_details", times, "details")
    for name in ("step", "step_with_batch_queue"):
        inner = getattr(core.EngineCore, name)

        def step(self, inner=inner):
            self.vllm_config.observability_config.enable_logging_iteration_details = switch.is_on
            return inner(self)

        setattr(core.EngineCore, name, step)


def _in_the_server(switch, times, stretches):
    from disagg_steps.vllm import StepsLogger
    from vllm.v1.metrics.loggers import LoggingStatLogger, PerEngineStatLoggerAdapter

    _time(LoggingStatLogger, "_log_iteration_details", times, "line")
    _time(StepsLogger, "record", times, "record")
    record = PerEngineStatLoggerAdapter.record

    def record_if_on(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        is_ours = isinstance(self.per_engine_stat_loggers[engine_idx], StepsLogger)
        if switch.is_on or not is_ours:
            record(self, scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
        if not is_ours or iteration_stats is None:
            return
        details = getattr(scheduler_stats, "iteration_details", None)
        if details is not None:
            times.add("step", round(details.elapsed_ms * 1e6))
        stretches.step(iteration_stats)

    PerEngineStatLoggerAdapter.record = record_if_on


def _time(owner, name, times, what):
    """Time a function while our code is on."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def timed(*given, **named):
        began_ns = time.thread_time_ns()
        result = inner(*given, **named)
        spent_ns = time.thread_time_ns() - began_ns
        # Without details there is no line.
        if what != "line" or given[1].iteration_details is not None:
            times.add(what, spent_ns)
        return result

    setattr(owner, name, timed)
