"""How long a dead worker goes unnoticed: `make bench-supervise`.

A child is killed with SIGKILL fifty times at random moments, under our crew and under supervisord,
both running at the same time and both set to start a successor at once. The figure is the time from
the kill until the successor reports its pid. Bars: our median is at most 0.05 of supervisord's, our
95th percentile at most 0.15.

supervisord is installed in a separate environment, `.venv-bench`, made on the first run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

from bench.report import processor

KILLS = 50
MEDIAN_BAR, P95_BAR = 0.05, 0.15
ENVIRONMENT = Path(".venv-bench")
PACKAGES = ("supervisor==4.3.0", "setuptools<81")
REPORT = Path("bench/out/supervise.json")
OURS, THEIRS = "disagg-node", "supervisord"
_PATIENCE_SECONDS = 30.0


class PidPipe:
    """A named pipe to which each child writes its pid as it starts."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pids"
        os.mkfifo(self.path)
        # Open at both ends, so that a read never meets the end of the file.
        self._pipe = os.open(self.path, os.O_RDWR)

    @property
    def child(self) -> tuple[str, ...]:
        """Return a program that reports its pid and then does nothing."""
        return ("/bin/sh", "-c", f"echo $$ > {self.path}; exec sleep 1000000")

    def next_pid(self) -> int:
        """Wait for the next child."""
        if not select.select([self._pipe], [], [], _PATIENCE_SECONDS)[0]:
            raise SystemExit(f"no child has started for {_PATIENCE_SECONDS:g} s")
        return int(os.read(self._pipe, 100))


def supervisord_environment() -> Path:
    """Return the interpreter of an environment with supervisord."""
    python = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / ".ready").exists():
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (ENVIRONMENT / ".ready").touch()
    return python


def our_argv(folder: Path, child: tuple[str, ...]) -> list[str]:
    """Return the command of a crew with one worker."""
    return [sys.executable, "-m", "bench.supervise.crew", str(folder), *child]


def their_argv(python: Path, folder: Path, child: tuple[str, ...]) -> list[str]:
    """Return the command of a supervisord whose one program is always restarted at once."""
    config = folder / "supervisord.conf"
    # Without startsecs = 0 a child that dies early is restarted later each time.
    config.write_text(
        "[supervisord]\nnodaemon=true\nsilent=true\n"
        f"logfile={folder}/supervisord.log\npidfile={folder}/supervisord.pid\n"
        f"[program:worker]\ncommand={child[0]} {child[1]} '{child[2]}'\n"
        "autorestart=true\nstartsecs=0\nstartretries=1000000\n"
        f"stdout_logfile={folder}/worker.log\nredirect_stderr=true\n"
    )
    return [str(python), "-m", "supervisor.supervisord", "-c", str(config)]


@contextlib.contextmanager
def running(argv: list[str]) -> Iterator[None]:
    """Run a supervisor until the block ends."""
    process = subprocess.Popen(argv)
    try:
        yield
    finally:
        process.terminate()
        process.wait(_PATIENCE_SECONDS)


def measure(folder: Path) -> dict[str, list[float]]:
    """Return the seconds from each death to its successor, for both, with alternating kills."""
    python = supervisord_environment()
    numbers = random.Random(1)
    pipes, pids = {}, {}
    with contextlib.ExitStack() as stack:
        for name in (OURS, THEIRS):
            own = folder / name
            own.mkdir()
            pipes[name] = pipe = PidPipe(own)
            argv = (
                our_argv(own, pipe.child) if name == OURS else their_argv(python, own, pipe.child)
            )
            stack.enter_context(running(argv))
            pids[name] = pipe.next_pid()
        missed: dict[str, list[float]] = {OURS: [], THEIRS: []}
        for _ in range(KILLS):
            for name, pipe in pipes.items():
                # At a random moment of a supervisor's cycle: supervisord checks once a second.
                time.sleep(0.2 + numbers.random())
                began = time.monotonic()
                os.kill(pids[name], signal.SIGKILL)
                pids[name] = pipe.next_pid()
                missed[name].append(time.monotonic() - began)
        return missed


def main() -> int:
    """Measure, print and write the table; 1 if a bar is missed."""
    argparse.ArgumentParser(prog="make bench-supervise", description=__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-supervise-") as name:
        missed = measure(Path(name))
    figures = {
        name: {
            "p50_ms": statistics.median(seconds) * 1e3,
            "p95_ms": statistics.quantiles(seconds, n=20)[-1] * 1e3,
            "max_ms": max(seconds) * 1e3,
        }
        for name, seconds in missed.items()
    }
    ratios = {key: figures[OURS][key] / figures[THEIRS][key] for key in figures[OURS]}
    out = sys.stdout
    out.write(f"{KILLS} kills each            p50 ms    p95 ms    max ms\n")
    for row, values in (*figures.items(), ("ratio", ratios)):
        out.write(f"{row:<20}" + "".join(f"{values[key]:>10.3f}" for key in ratios) + "\n")
    met = ratios["p50_ms"] <= MEDIAN_BAR and ratios["p95_ms"] <= P95_BAR
    bars = f"bars: p50 {MEDIAN_BAR:g} x, p95 {P95_BAR:g} x of supervisord's"
    out.write(f"{bars}: {'met' if met else 'MISSED'}\n")
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "kills": KILLS,
        "figures": figures,
        "ratios": ratios,
        "met": met,
        "missed_seconds": missed,
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "processor": processor(),
        "load": os.getloadavg()[0],
        "packages": PACKAGES,
    }
    REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
