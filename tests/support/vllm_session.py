"""What tests with real engines share."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from disagg_cluster.demo.real_vllm import tiny_model
from support.running_node import RunningNode

Say = Callable[[str], None]
"""Prints a measured figure past pytest's capture."""


@dataclass(frozen=True, slots=True)
class RealPair:
    """A daemon with one prefill and one decode engine, and a Prometheus that watches it."""

    node: RunningNode
    prometheus_url: str
    run_dir: Path


def make_model(python: Path, folder: Path, size: Sequence[str]) -> Path:
    """Write a random model of a size (`vllm_nodes`) with the engine's interpreter."""
    subprocess.run([python, tiny_model.__file__, folder, *size], check=True, timeout=300)
    return folder
