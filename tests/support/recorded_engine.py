"""A real vLLM engine of the test: its step records as they arrive, and its truth."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from disagg_cluster.demo.nodefile import free_ports
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.scrape import fetch
from disagg_exporter.model import Step
from disagg_exporter.steps.listener import StepsListener
from disagg_exporter.steps.local_sockets import in_session_of
from disagg_exporter.steps.messages import ControlMessage, StepEvent
from support.received_messages import one_by_one
from support.vllm_nodes import CPU_ENVIRONMENT, ENGINE_ARGS, MODEL_NAME
from support.vllm_pair import TRUTH_PLUGIN, TruthStep, read_truth, truth_environment

PLUGIN = Path(__file__).parents[2] / "exporter/disagg_exporter/inside_engine"
ASYNC_ENVIRONMENT = "DISAGG_TRUTH_ASYNC"
IN_PROCESS_ENVIRONMENT = "DISAGG_TRUTH_IN_PROCESS"


@dataclass(slots=True)
class RecordedEngine:
    """One aggregated engine; `heard` are all messages of its plugin, in order of arrival."""

    url: str
    truth_path: Path
    heard: list[ControlMessage] = field(default_factory=list)

    def hear(self, event: StepEvent) -> None:
        """Receive messages of its plugin."""
        self.heard.extend(one_by_one(event))

    @property
    def steps(self) -> list[ControlMessage]:
        """Return the records of steps that had work.

        An engine that schedules ahead also reports empty ones, which its worker does not stamp.
        """
        return [message for message in self.heard if message.step and _worked(message.step)]

    def truth(self) -> list[TruthStep]:
        """Return the steps that the worker has stamped so far."""
        return read_truth(self.truth_path)


def _worked(step: Step) -> bool:
    return bool(step.context_requests or step.generation_requests)


@contextlib.asynccontextmanager
async def recorded_engine(
    python: Path,
    model: Path,
    folder: Path,
    *,
    batched_tokens: int,
    overlapped: bool,
    in_process: bool = False,
) -> AsyncIterator[RecordedEngine]:
    """Start an engine whose prompts are cut into chunks, wait until it serves; end it.

    `overlapped` enables async scheduling, `in_process` runs the model in the engine's own process:
    what vLLM does on one GPU, and not in its CPU build.
    """
    [port] = free_ports(1)
    engine = RecordedEngine(f"http://127.0.0.1:{port}", folder / "truth")
    socket = folder / "steps.sock"
    environment = {
        **os.environ,
        **CPU_ENVIRONMENT,
        **truth_environment(engine.truth_path),
        "PYTHONPATH": f"{PLUGIN}{os.pathsep}{TRUTH_PLUGIN}",
        "DISAGG_STEPS_SOCKET": str(socket),
    }
    if overlapped:
        environment[ASYNC_ENVIRONMENT] = "1"
    if in_process:
        environment[IN_PROCESS_ENVIRONMENT] = "1"
    argv = [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", MODEL_NAME),
        *("--host", "127.0.0.1", "--port", str(port), *ENGINE_ARGS),
        *("--enable-logging-iteration-details", "--enable-chunked-prefill"),
        *("--max-num-batched-tokens", str(batched_tokens), "--no-enable-prefix-caching"),
    ]
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            argv, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        listener = StepsListener(
            socket, "mixed-0", lambda pid: in_session_of(process.pid, pid), engine.hear
        )
        try:
            listener.open(asyncio.get_running_loop())
            await _served(engine.url, process, folder / "engine.log")
            yield engine
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            listener.close()


async def _served(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    async with asyncio.timeout(300):
        while process.poll() is None:
            with contextlib.suppress(DisaggError):
                await asyncio.to_thread(fetch, f"{url}/health", 2.0)
                return
            await asyncio.sleep(0.5)
    raise AssertionError(log.read_text(errors="replace")[-3000:])
