"""A vLLM plugin for the benchmark alone: writes what each call of our plugin's record() took.

One line a step to $DISAGG_STOPWATCH_FILE: nanoseconds of the calling thread's CPU time, and of the
step as the engine tells it. The lines are written every few hundred calls.
"""

import os
import time

FILE_ENVIRONMENT = "DISAGG_STOPWATCH_FILE"
_LINES = 200


def install():
    """Wrap record() in the process that calls it."""
    path = os.environ.get(FILE_ENVIRONMENT)
    if not path:
        return
    from disagg_steps.vllm import StepsLogger

    inner, taken = StepsLogger.record, []

    def record(self, scheduler_stats, *rest, **more):
        began_ns = time.thread_time_ns()
        inner(self, scheduler_stats, *rest, **more)
        spent_ns = time.thread_time_ns() - began_ns
        details = getattr(scheduler_stats, "iteration_details", None)
        if details is not None:
            taken.append(f"{spent_ns} {round(details.elapsed_ms * 1e6)}\n")
        if len(taken) >= _LINES:
            with open(path, "a") as file:  # noqa: PTH123 # as plain as an engine should see it
                file.writelines(taken)
            taken.clear()

    StepsLogger.record = record
