"""What the tests with real engines hand each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.running_node import RunningNode

Say = Callable[[str], None]
"""Prints a measured figure past pytest's capture."""


@dataclass(frozen=True, slots=True)
class RealPair:
    """A daemon with one prefill and one decode engine, and a Prometheus that watches it."""

    node: RunningNode
    prometheus_url: str
    run_dir: Path
