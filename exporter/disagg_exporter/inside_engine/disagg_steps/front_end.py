"""Counts the requests that vLLM's front end has handed to its engine and not received back.

The record of a step is made when the step ends. That a step is running is known earlier, because
its requests are waiting. vLLM keeps a list of them and does not pass it to stat loggers, but it
creates its loggers while it creates its engine, when the list exists. The list is looked up once,
and only read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any
from weakref import ref

_MOST_CALLERS = 32


def find_in_flight() -> Callable[[], int | None]:
    """Return a function that counts the requests in flight of the engine now being created.

    It returns None if no such engine is among the callers, as in another vLLM version.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_CALLERS):
        if frame is None:
            break
        processor = _output_processor(frame.f_locals.get("self"))
        if processor is not None:
            return partial(_count, ref(processor))
        frame = frame.f_back
    return lambda: None


def _output_processor(caller: Any) -> Any:
    """Return the object in which a caller keeps its requests; None if the caller is no engine."""
    try:
        # Only the object's own attributes: none of its code may run.
        found = vars(caller).get("output_processor")
        return found if isinstance(found.request_states, dict) else None
    except Exception:  # noqa: BLE001 # any object may be among the callers
        return None


def _count(known: Callable[[], Any]) -> int | None:
    processor = known()
    if processor is None:
        return None
    # Copied at once: the engine's own thread adds and removes.
    states = list(processor.request_states.values())
    return sum(not _awaits_input(state) for state in states)


def _awaits_input(state: Any) -> bool:
    """Return whether this is a session that has been answered and waits for more input."""
    return bool(getattr(state, "streaming_input", False)) and state.input_chunk_queue is None
