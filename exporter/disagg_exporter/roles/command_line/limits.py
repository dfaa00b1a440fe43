"""The most that an engine takes into a step, by its command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from disagg_exporter.model import StepLimits
from disagg_exporter.roles.command_line.flags import read_flags

# Options of vLLM, SGLang and TensorRT-LLM.
_TOKENS = ("max-num-batched-tokens", "chunked-prefill-size", "max-num-tokens")
_REQUESTS = ("max-num-seqs", "max-running-requests", "max-batch-size")
# vLLM reads 8k as 8000 and 8K as 8192.
_NUMBER = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([kKmM]?)")
_UNITS = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
_LARGEST = 2**31


def step_limits(argv: Sequence[str]) -> StepLimits:
    """Return the limits that a command sets; None for those that it leaves to the engine."""
    flags = read_flags(argv)
    return StepLimits(_count(flags.value(*_TOKENS)), _count(flags.value(*_REQUESTS)))


def _count(text: str | None) -> int | None:
    found = _NUMBER.fullmatch(text or "")
    if found is None:
        return None  # SGLang's -1 disables chunking
    number = float(found[1]) * _UNITS[found[2]]
    return int(number) if number.is_integer() and 0 < number < _LARGEST else None
