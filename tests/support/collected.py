"""Whether Python collects garbage while it parses JSON."""

from __future__ import annotations

import gc
import json.decoder
import sys
from collections.abc import Callable
from types import FrameType


def is_collected_in_json(read: Callable[[], object]) -> bool:
    """Call `read` with a collection at every few allocations; return whether JSON met one."""
    seen: list[bool] = []

    def see(phase: str, _info: object) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename != json.decoder.__file__:
            frame = frame.f_back
        seen.append(frame is not None)

    before = gc.get_threshold()
    gc.callbacks.append(see)
    gc.set_threshold(5, 1_000_000)
    try:
        read()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(see)
    assert seen, "nothing was collected at all"
    return any(seen)
