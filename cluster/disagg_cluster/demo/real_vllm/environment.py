"""The Python environment that the real vLLM engines of the demo and the tests run in.

`python -m disagg_cluster.demo.real_vllm.environment TARGET_VENV [--gpu auto|cpu|cuda]` makes it, or
finds it made: 0. 1: a command failed. 2: the target is something else. 3: pip knows no place
that holds the CPU build of torch.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from disagg_cluster.demo.real_vllm.environment_plan import (
    CALM_WAITS,
    EnvironmentFailed,
    Flavour,
    TorchBuildMissing,
    failure,
    fingerprint,
    plan,
)
from disagg_exporter.errors import DisaggError

Run = Callable[[tuple[str, ...]], tuple[int, str]]

STAMP_FILE = ".disagg-environment"
_HALF_MADE = "half-made"
_COMMAND_SECONDS = 1800


class TargetTaken(DisaggError):  # noqa: N818 - says what happened
    """The target exists and was not made by us; it is left as it is."""


def make(target: Path, flavour: Flavour, run: Run, say: Callable[[str], None]) -> bool:
    """Make the environment unless it is there; True if it was made now.

    Raises:
        TargetTaken: `target` exists and carries no stamp of ours.
        TorchBuildMissing, EnvironmentFailed: as they say; what was half made is removed.
    """
    wanted = fingerprint(flavour, _added_files() if flavour == "cpu" else ())
    with _only_one(target):
        stamp = target / STAMP_FILE
        if stamp.is_file():
            if stamp.read_text() == wanted:
                return False
            say(f"{target} is outdated or half made: making it anew")
            shutil.rmtree(target)
        elif target.exists() and any(target.iterdir()):
            raise TargetTaken(f"{target} exists and is no environment of ours; name another")
        target.mkdir(exist_ok=True)
        stamp.write_text(_HALF_MADE)
        finished = False
        try:
            steps = plan(target, sys.executable, flavour)
            for number, step in enumerate(steps, start=1):
                say(f"[{number}/{len(steps)}] {step.says}")
                code, said = run(step.argv)
                if code != 0:
                    raise failure(step, code, said)
            stamp.write_text(wanted)
            finished = True
        finally:
            if not finished:
                shutil.rmtree(target, ignore_errors=True)
    return True


def run_command(argv: tuple[str, ...]) -> tuple[int, str]:
    """Run one command to its end: its exit code and what it said on both streams."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        return 127, str(error)
    except subprocess.TimeoutExpired:
        return 124, f"not done after {_COMMAND_SECONDS} s"
    return done.returncode, done.stdout


def flavour_here(run: Run) -> Flavour:
    """Say what this machine can run: "cuda" where nvidia-smi works and lists a GPU."""
    code, said = run(("nvidia-smi", "-L"))
    return "cuda" if code == 0 and "GPU" in said else "cpu"


def _added_files() -> tuple[bytes, ...]:
    files = (path for path in CALM_WAITS.rglob("*") if path.is_file())
    return tuple(path.read_bytes() for path in sorted(files) if path.suffix != ".pyc")


@contextmanager
def _only_one(target: Path) -> Iterator[None]:
    # The folder itself is the lock: no file is left behind.
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def main(argv: list[str] | None = None, run: Run = run_command) -> int:
    """Parse the command line and make the environment; the exit code is in the module's text."""
    parser = argparse.ArgumentParser(prog="python -m disagg_cluster.demo.real_vllm.environment")
    parser.add_argument("target", type=Path, metavar="TARGET_VENV")
    parser.add_argument("--gpu", choices=("auto", "cpu", "cuda"), default="auto")
    asked = parser.parse_args(argv)
    flavour: Flavour = flavour_here(run) if asked.gpu == "auto" else asked.gpu
    target = asked.target.absolute()

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    try:
        made = make(target, flavour, run, say)
    except (EnvironmentFailed, TargetTaken, TorchBuildMissing) as error:
        sys.stderr.write(f"vllm_environment: {error}\n")
        return {EnvironmentFailed: 1, TargetTaken: 2, TorchBuildMissing: 3}[type(error)]
    say(f"{target}: {flavour} environment {'made' if made else 'already there'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
