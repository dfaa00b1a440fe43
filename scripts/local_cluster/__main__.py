"""`make run-cluster`: three simulated nodes with a separate network, on this machine.

Each node is a daemon in a network namespace; one Prometheus with our rules and one planner serve
them all. Runs until Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from types import FrameType

from scripts.local_cluster.plan import link_command
from scripts.local_cluster.sandbox import PortTakenError, Sandbox, running
from scripts.local_cluster.simulated import NODES, simulated_cluster

from disagg_cluster.prometheus.local_server import HOW_TO_GET, find_prometheus
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.scrape import fetch

_PORT = 9847
_DOORS = len(NODES) + 2


def main() -> int:
    """Run it; return 0 after Ctrl-C, an error's own exit code, or 1 if the cluster has died."""
    parser = argparse.ArgumentParser(prog="local_cluster", description=__doc__)
    parser.add_argument(
        "--port",
        type=_first_port,
        default=_PORT,
        help="the first of five ports of 127.0.0.1 for the pages; 0 takes any",
    )
    port = parser.parse_args().port
    prometheus = find_prometheus(os.environ, shutil.which)
    if prometheus is None:
        _say(HOW_TO_GET)
        return 1
    over = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        with running(simulated_cluster(prometheus.absolute(), port)) as sandbox:
            return _until_over(sandbox, over)
    except PortTakenError as error:
        _say(f"{error}; `make run-cluster PORT=…` begins with another")
        return error.exit_code
    except DisaggError as error:
        _say(str(error))
        return error.exit_code


def _first_port(text: str) -> int:
    last = 65_536 - _DOORS
    if not text.isdecimal() or int(text) > last:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to {last}")
    return int(text)


def _until_over(sandbox: Sandbox, over: threading.Event) -> int:
    began = time.monotonic()
    _say("SIMULATED: stand-in engines on simulated GPUs, in network namespaces of this machine")
    waiting = list(sandbox.plan.doors)
    while sandbox.process.poll() is None and not over.wait(0.3):
        if waiting:
            waiting = [
                door for door in waiting if not _answers(sandbox.url(door.name) + door.health)
            ]
            if not waiting:
                _tell(sandbox, time.monotonic() - began)
    if over.is_set():
        _say("ending")
        return 0
    _say("the cluster has died")
    return 1


def _answers(url: str) -> bool:
    try:
        fetch(url, 2.0)
    except DisaggError:
        return False
    return True


def _tell(sandbox: Sandbox, seconds: float) -> None:
    _say(f"all pages answer after {seconds:.0f} s:")
    for door in sandbox.plan.doors:
        _say(f"  {door.name + ':':<12} {sandbox.url(door.name)}/")
    name = sandbox.plan.machines[1].name
    _say(f"logs and node files: {sandbox.plan.logs} as a shell within sees it; from another one:")
    _say(f"  a shell at the switch: {shlex.join(sandbox.within('bash'))}")
    _say(f"  a shell on {name}:     {shlex.join(sandbox.within('bash', machine=name))}")
    for what, up in (("cut off", False), ("heal", True)):
        argv = sandbox.within(*link_command(name, up=up))
        _say(f"  {what} {name}: {shlex.join(argv)}")
    _say("Ctrl-C ends it, and leaves nothing behind")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
