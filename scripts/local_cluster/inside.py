"""The first process within the namespaces: makes the network, starts programs, keeps doors open.

Run by `sandbox`, with the plan as the first line of its input; the end of input ends the cluster.
When it ends, for any reason, the kernel ends all processes of its PID namespace and removes
network, mounts and files, so that nothing is left for another run to clean up.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from scripts.local_cluster.doors import OpenDoor
from scripts.local_cluster.plan import ClusterPlan, Program, from_json, preparation

READY = "ready"
"""Its output when everything is started."""
_END_SECONDS = 20.0
_LAST_OF_LOG_BYTES = 2000


class Programs:
    """The plan's programs, each with its own log; reaps orphans."""

    def __init__(self, plan: ClusterPlan) -> None:
        self._logs = Path(plan.logs)
        self._logs.mkdir(parents=True, exist_ok=True)
        self._running: dict[int, tuple[Program, subprocess.Popen[bytes]]] = {}
        self._none_left = asyncio.Event()
        self._ending = False
        for program in plan.programs:
            self._start(program)

    def _start(self, program: Program) -> None:
        there = ("ip", "netns", "exec", program.machine) if program.machine else ()
        with self._log(program).open("wb") as log:
            try:
                process = subprocess.Popen(
                    [*there, *program.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **program.environment},
                    start_new_session=True,
                )
            except OSError as error:
                sys.stderr.write(f"{program.name} cannot be started: {error}\n")
                return
        self._running[process.pid] = (program, process)

    def _log(self, program: Program) -> Path:
        return self._logs / f"{program.name}.log"

    def bury(self) -> None:
        """Reap all dead children, and report a program's early end."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._running:
                program, process = self._running.pop(pid)
                process.returncode = os.waitstatus_to_exitcode(status)
                if not self._ending:
                    self._report_end(program, process.returncode)
        if not self._running:
            self._none_left.set()

    def _report_end(self, program: Program, code: int) -> None:
        last = self._log(program).read_bytes()[-_LAST_OF_LOG_BYTES:].decode(errors="replace")
        sys.stderr.write(f"{program.name} has ended with {code}; the end of its log:\n{last}\n")

    async def end(self) -> None:
        """Ask all to end and wait for them, within a limit."""
        self._ending = True
        for pid in self._running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self.bury()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._none_left.wait()


async def _input_ended(descriptor: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def check_input() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            ended.set()

    loop.add_reader(descriptor, check_input)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()


async def run(plan: ClusterPlan, descriptors: tuple[int, ...]) -> None:
    """Run the cluster until the input ends."""
    loop = asyncio.get_running_loop()
    doors = [OpenDoor(door, each) for door, each in zip(plan.doors, descriptors, strict=True)]
    servers = [await door.open() for door in doors]
    programs = Programs(plan)
    loop.add_signal_handler(signal.SIGCHLD, programs.bury)
    programs.bury()  # those that ended before the handler was set
    print(READY, flush=True)  # noqa: T201 - read by `sandbox`
    await _input_ended(0)
    for server in servers:
        server.close()
    await programs.end()


def main() -> int:
    """Make the network, run the programs, and end when the input does."""
    # Unbuffered, as the rest of the input is only waited for, not read.
    with open(0, "rb", buffering=0, closefd=False) as start:
        plan = from_json(start.readline().decode())
    for argv in preparation(plan):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.stderr.write(f"cannot make the network: {' '.join(argv)}: {done.stderr}")
            return 1
    for name, text in plan.files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    asyncio.run(run(plan, tuple(map(int, sys.argv[1:]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
