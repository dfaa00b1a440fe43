"""How a process is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """How to start a process: its arguments and what its environment has beside the inherited."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
