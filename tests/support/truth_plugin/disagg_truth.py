"""A test-only vLLM plugin: stamps every engine step from inside the worker process.

It wraps the worker at the point where the executor's calls arrive, so it sees what the step
records of the API process can only infer. One line per step goes to $DISAGG_TRUTH_FILE:

    start_ns end_ns waited_ns scheduled_tokens context_tokens generation_tokens

Times are CLOCK_MONOTONIC. `start_ns` is the entry into execute_model, `end_ns` the return from
sample_tokens, `waited_ns` the part between the two calls, when the worker waits for its engine
core. Calls that schedule no token are no steps. Only rank 0 writes.

The work of an overlapped step (async scheduling) is launched, not awaited, here: the stamps are
the truth on CPU only.
"""

import os
import time

FILE_ENVIRONMENT = "DISAGG_TRUTH_FILE"
ASYNC_ENVIRONMENT = "DISAGG_TRUTH_ASYNC"
IN_PROCESS_ENVIRONMENT = "DISAGG_TRUTH_IN_PROCESS"


class StepStamps:
    """Joins the two calls that make a step and appends its line to one file."""

    def __init__(self, path, clock_ns):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._clock_ns = clock_ns
        self._open = None

    def execute(self, run, scheduler_output):
        """Run execute_model; a result that is not None ends the step."""
        start_ns = self._clock_ns()
        output = run(scheduler_output)
        returned_ns = self._clock_ns()
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens == 0:
            self._open = None
            return output
        context, generation = _tokens_by_phase(scheduler_output)
        self._open = (start_ns, returned_ns, tokens, context, generation)
        if output is not None:
            self._close(returned_ns, returned_ns)
        return output

    def sample(self, run, grammar_output):
        """Run sample_tokens, which ends the step that execute_model began."""
        resumed_ns = self._clock_ns()
        output = run(grammar_output)
        if self._open is not None:
            self._close(resumed_ns, self._clock_ns())
        return output

    def _close(self, resumed_ns, end_ns):
        start_ns, returned_ns, tokens, context, generation = self._open
        self._open = None
        waited_ns = resumed_ns - returned_ns
        line = f"{start_ns} {end_ns} {waited_ns} {tokens} {context} {generation}\n"
        os.write(self._file, line.encode())


def _tokens_by_phase(scheduler_output):
    # The engine's own split, so that a difference is a difference in time alone.
    from vllm.v1.utils import compute_iteration_details

    details = compute_iteration_details(scheduler_output)
    return details.num_ctx_tokens, details.num_generation_tokens


def install(clock_ns=time.monotonic_ns):
    """Wrap vLLM's worker wrapper; called by vLLM in each of its processes."""
    path = os.environ.get(FILE_ENVIRONMENT)
    if not path:
        return
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    if hasattr(WorkerWrapperBase, "disagg_truth"):
        return
    WorkerWrapperBase.disagg_truth = True
    if os.environ.get(ASYNC_ENVIRONMENT):
        _afterwards(_let_schedule_ahead)
    if os.environ.get(IN_PROCESS_ENVIRONMENT):
        _afterwards(_let_run_in_process)
    inner_execute = WorkerWrapperBase.execute_model
    inner_sample = getattr(WorkerWrapperBase, "sample_tokens", None)
    stamps_by_worker = {}

    def stamps_of(wrapper):
        # Opened at the first step: only the worker process ever gets here.
        if id(wrapper) not in stamps_by_worker:
            first = wrapper.worker.rank == 0
            stamps_by_worker[id(wrapper)] = StepStamps(path, clock_ns) if first else None
        return stamps_by_worker[id(wrapper)]

    def execute_model(self, scheduler_output):
        def run(argument):
            return inner_execute(self, argument)

        stamps = stamps_of(self)
        if stamps is None:
            return run(scheduler_output)
        return stamps.execute(run, scheduler_output)

    def sample_tokens(self, grammar_output):
        def run(argument):
            if inner_sample is not None:
                return inner_sample(self, argument)
            return self.worker.sample_tokens(argument)

        stamps = stamps_of(self)
        return run(grammar_output) if stamps is None else stamps.sample(run, grammar_output)

    WorkerWrapperBase.execute_model = execute_model
    WorkerWrapperBase.sample_tokens = sample_tokens


def _let_schedule_ahead(vllm_config):
    """Use async scheduling, which the CPU build switches off as not needed there."""
    vllm_config.scheduler_config.async_scheduling = True


def _let_run_in_process(vllm_config):
    """Run the model in the engine's own process, as on one GPU; the CPU build never does."""
    vllm_config.parallel_config.distributed_executor_backend = "uni"


def _afterwards(change):
    """Change the configuration after the CPU build has."""
    from vllm.platforms.cpu import CpuPlatform

    inner = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls, vllm_config):
        inner(cls, vllm_config)
        change(vllm_config)

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
