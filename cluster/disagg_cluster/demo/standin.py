"""A stand-in for an inference engine: vLLM's endpoints and telemetry, but no model and no GPU.

It is the simulator's engine in real time, a child process of the demo: `python -m
disagg_cluster.demo.standin --help`. Its steps take real time, at stated constant costs
(`StandinCosts`) or at those of a table of measured steps (`--prices`); its step records go through
the same sender and socket as those of the vLLM plugin, marked as simulated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from disagg_cluster.demo.http1 import HttpConnection
from disagg_cluster.demo.routes import Routes
from disagg_cluster.demo.simulated_gpu import SimGpus
from disagg_cluster.demo.step_loop import StepLoop
from disagg_cluster.simulator.engine.batch import SchedulerLimits
from disagg_cluster.simulator.engine.engine import Engine
from disagg_cluster.simulator.engine.hardware import H100, Gpu
from disagg_cluster.simulator.engine.roofline import BatchWork, CostModel, Price
from disagg_cluster.simulator.engine.scheduler import Scheduler
from disagg_cluster.simulator.prices.shipped import named_costs, table_names
from disagg_cluster.simulator.prices.table_costs import TableCosts
from disagg_cluster.simulator.telemetry.page import Page, PageFacts
from disagg_cluster.simulator.telemetry.page_counters import PageCounters
from disagg_exporter.errors import DisaggError
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.sender import Sender


@dataclass(frozen=True, slots=True)
class StandinCosts:
    """The constant costs of a stand-in engine, in seconds; a step's length is their sum.

    The utilization of its GPUs' peaks is invented, too: prefill uses mostly the tensor cores,
    decode mostly the memory's bandwidth.

    The defaults have the shape of an 8B model on a large GPU (prefill is priced by the token,
    decode mostly by the step), not its exact figures. They hold for the engine as a whole, whatever
    the number of its GPUs.
    """

    step_base_seconds: float = 0.012
    """Every step: launch, weights read once, sampling."""
    prefill_token_seconds: float = 50e-6
    """Each prompt token computed in the step."""
    decode_request_seconds: float = 250e-6
    """Each request that gets one more token in the step."""
    kv_thousand_tokens_seconds: float = 50e-6
    """Each 1000 tokens of KV cache that those requests read."""
    transfer_thousand_tokens_seconds: float = 0.004
    """Each 1000 prompt tokens whose KV comes from another engine; the GPU idles meanwhile."""

    def price(self, work: BatchWork) -> Price:
        """Return the duration of a step with this work."""
        seconds = (
            self.step_base_seconds
            + self.prefill_token_seconds * work.context_tokens
            + self.decode_request_seconds * work.writers
            + self.kv_thousand_tokens_seconds * work.writers_kv_tokens / 1000
        )
        compute_ratio, memory_ratio = (0.6, 0.3) if work.context_tokens else (0.1, 0.75)
        return Price(seconds, compute_ratio, memory_ratio)

    def transfer_seconds(self, prompt_tokens: int) -> float:
        """Return how long the KV of a prompt travels to this engine."""
        return self.transfer_thousand_tokens_seconds * prompt_tokens / 1000


LIMITS = SchedulerLimits(kv_blocks=25_000, block_tokens=16, running_requests=256, step_tokens=2048)
"""Limits of a stand-in engine."""


ROLES = ("prefill", "decode", "mixed")


@dataclass(frozen=True, slots=True)
class Options:
    """The command-line options of a stand-in engine."""

    name: str
    role: str
    port: int
    model: str
    host: str = "127.0.0.1"
    gpus: tuple[int, ...] = ()
    sim_dir: Path | None = None
    costs: StandinCosts = field(default_factory=StandinCosts)
    prices: TableCosts | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None

    def step_costs(self) -> tuple[CostModel, Gpu]:
        """Return the costs of its steps and the GPU: by the named table, else constant."""
        if self.prices is None:
            return self.costs, H100
        return self.prices, self.prices.roofline.gpu

    def tls(self) -> ssl.SSLContext | None:
        """Return the server's TLS context; None where it serves plain HTTP."""
        if self.ssl_certfile is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        return context


async def serve(options: Options, steps_socket: str | None) -> None:
    """Serve until SIGTERM or SIGINT; raises `OSError` when the port is not available."""
    scheduler = Scheduler(LIMITS, prefix_caching=False)
    step_costs, gpu = options.step_costs()
    engine = Engine(scheduler, step_costs, gap_seconds=0.0, longest_run=1)
    facts = _page_facts(options)
    counters = PageCounters(facts.longest_tokens)
    gpus = None
    if options.sim_dir is not None and options.gpus:
        gpus = SimGpus(options.sim_dir, options.gpus, time.monotonic_ns(), gpu)
    sender = None
    if steps_socket:
        sender = Sender(steps_socket, flags=wire.SIMULATED, in_flight=lambda: steps.in_flight)
    steps = StepLoop(engine, counters, options.costs.transfer_seconds, sink=sender, gpus=gpus)
    routes = Routes(options.name, options.model, scheduler, Page(facts, counters), steps)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = await loop.create_server(
        lambda: HttpConnection(routes.handle), options.host, options.port, ssl=options.tls()
    )
    if sender is not None:
        sender.start()
    work = asyncio.gather(steps.run(), steps.report_gpus())
    stop_asked = loop.create_task(stopping.wait())
    _print(
        f"stand-in engine {options.name}: role {options.role}, model {options.model}, port "
        f"{options.port}, GPUs {list(options.gpus)} (simulated), "
        f"steps {options.prices.table.source if options.prices else 'at constant costs'}, "
        f"costs {asdict(options.costs)}"
    )
    await asyncio.wait((work, stop_asked), return_when=asyncio.FIRST_COMPLETED)
    server.close()
    await routes.drain()
    work.cancel()
    stop_asked.cancel()
    if sender is not None:
        sender.close()
    if gpus is not None:
        gpus.leave()
    with suppress(asyncio.CancelledError):
        await work
    _print(f"stand-in engine {options.name}: stopped")


def parse_options(argv: Sequence[str]) -> Options:
    """Parse the command line; exits with 2 and a message on an error, like argparse."""
    parser = argparse.ArgumentParser(prog="standin", description=__doc__)
    parser.add_argument("--name", required=True, help="the engine's name")
    parser.add_argument("--role", required=True, choices=ROLES, help="what it is for")
    parser.add_argument("--port", required=True, type=int, help="HTTP port")
    parser.add_argument("--host", default="127.0.0.1", help="IP address to listen on")
    parser.add_argument("--model", required=True, help="the name under which it serves")
    parser.add_argument("--gpus", default="", type=_indices, help="simulated GPUs, such as 0,1")
    parser.add_argument("--sim-dir", type=Path, help="folder of the simulated GPUs' files")
    parser.add_argument(
        "--costs", default=StandinCosts(), type=_costs, help="JSON of costs to change"
    )
    parser.add_argument(
        "--prices",
        type=_prices,
        help="measured steps in place of costs: a CSV file (docs/simulator.md), or one of "
        + ", ".join(table_names()),
    )
    parser.add_argument("--ssl-certfile", type=Path, help="PEM file of its certificate, for TLS")
    parser.add_argument("--ssl-keyfile", type=Path, help="PEM file of the certificate's key")
    options: Mapping[str, object] = vars(parser.parse_args(argv))
    return Options(**options)  # type: ignore[arg-type] # argparse has checked them


def main() -> int:
    """Run one stand-in engine until it is told to stop."""
    options = parse_options(sys.argv[1:])
    try:
        asyncio.run(serve(options, os.environ.get(wire.SOCKET_ENVIRONMENT)))
    except OSError as error:
        _print(f"stand-in engine {options.name} stops: {error}")
        return 1
    return 0


def _page_facts(options: Options) -> PageFacts:
    return PageFacts(
        model_name=options.model,
        created_seconds=time.time(),
        connector=options.role != "mixed",
        blocks=LIMITS.kv_blocks + 1,
        block_tokens=LIMITS.block_tokens,
        longest_tokens=131_072,
        prefix_caching=False,
    )


def _indices(text: str) -> tuple[int, ...]:
    return tuple(int(index) for index in text.split(",") if index)


def _costs(text: str) -> StandinCosts:
    try:
        return StandinCosts(**json.loads(text))
    except TypeError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _prices(text: str) -> TableCosts:
    try:
        return named_costs(text)
    except (DisaggError, OSError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _print(text: str) -> None:
    # A full disk is no reason to end.
    with suppress(OSError):
        print(text, flush=True)  # noqa: T201 - the log of this process is its standard output


if __name__ == "__main__":
    sys.exit(main())
