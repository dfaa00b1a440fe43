"""What one worker may take at most of its node, where the system lets us say so."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from disagg_cluster.config.section import Section
from disagg_cluster.config.values import Count

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGT", start=1)}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?) ?(|[KMGT]i?)B?")


def _bytes(value: object) -> object:
    """A size as people write it (80GiB, 1.5T) as a number of bytes."""
    if not isinstance(value, str):
        return value
    fits = _SIZE.fullmatch(value.strip())
    if fits is None:
        raise ValueError("no size")
    return int(float(fits[1]) * _UNITS[fits[2]])


SizeBytes = Annotated[int, Field(ge=1 << 20, lt=2**62), BeforeValidator(_bytes)]


class Limits(Section):
    """How much memory and how many tasks, and who is ended first when the node has no memory left.

    Memory and tasks need a control group that is delegated to the daemon; without one the worker
    runs all the same, and that is said.
    """

    memory: SizeBytes | None = Field(
        default=None, description="a size such as 80GiB, at least 1 MiB", examples=["80GiB"]
    )
    tasks: Count | None = Field(
        default=None, description="a number of processes and threads, 1 or more"
    )
    oom_score_adjust: Annotated[int, Field(ge=-1000, le=1000)] | None = Field(
        default=None, description="a number from -1000 (ended last) to 1000 (ended first)"
    )
