"""How long a new user waits for the first ratio: `make bench-first-ratio`.

The wheel is built, installed by uv into an empty environment (packages come from uv's cache where
it has them), and its `demo` is started for the first time, with no module compiled yet. Measured is
the time until a line has a prefill:decode ratio, and the commands that a new user tries next:
`phases` while the demo runs, and `--help`. Bars: 5 s to install, 10 s to the first ratio, 0.5 s for
`phases`. These are wall times, so other work on the machine dominates them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from bench.report import finish

BARS = {"install_seconds": 5.0, "first_ratio_seconds": 10.0, "phases_seconds": 0.5}
REPORT = Path("bench/out/first_ratio.json")
_ROUNDS = 5


def main() -> int:
    """Measure, print and write the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    # Set by developers only: a new user's Python keeps its bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="bfr-") as name:
        folder = Path(name)
        wheel = _wheel(folder / "wheel")
        uv = _uv(folder / "uv")
        environment = folder / "environment"
        began = time.monotonic()
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
        python = environment / "bin" / "python"
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, wheel], check=True)
        figures: dict[str, float | None] = {"install_seconds": time.monotonic() - began}
        figures |= _first_hour(environment / "bin" / "disagg-node")
    return finish(REPORT, figures, BARS, as_json=options.json)


def _wheel(folder: Path) -> Path:
    argv = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    [wheel] = folder.glob("*.whl")
    return wheel


def _uv(folder: Path) -> str:
    """Return the installed uv, or install one."""
    if (found := shutil.which("uv")) is not None:
        return found
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", "uv"], check=True)
    return str(folder / "bin" / "uv")


def _first_hour(command: Path) -> dict[str, float | None]:
    """Start the demo, wait for its first ratio, run `phases` and `--help`, end it."""
    argv = [str(command), "demo", "--json", "--port", "0"]
    began = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True) as demo,
    ):
        try:
            waited = _until_ratio(demo, began)
            if waited is None:
                log.seek(0)
                raise SystemExit(f"the demo ended without a ratio:\n{log.read()}")
            log.seek(0)
            [page] = (line.split()[-1] for line in log if line.startswith("metrics page:"))
            phases = [_seconds([str(command), "phases", "--url", page]) for _ in range(_ROUNDS)]
            helped = [_cpu_seconds([str(command), "--help"]) for _ in range(_ROUNDS)]
        finally:
            demo.send_signal(signal.SIGINT)
            demo.communicate()
    return {
        "first_ratio_seconds": waited,
        "phases_seconds": statistics.median(phases),
        "help_cpu_seconds": statistics.median(helped),
    }


def _until_ratio(demo: subprocess.Popen[str], began: float) -> float | None:
    assert demo.stdout is not None
    for line in demo.stdout:
        if json.loads(line)["prefill_decode_ratio"] is not None:
            return time.monotonic() - began
    return None


def _seconds(argv: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def _cpu_seconds(argv: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
