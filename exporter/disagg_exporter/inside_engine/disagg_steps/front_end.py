"""How many requests vLLM's front end has handed to its engine and not got back.

A record of a step is made when the step ends. That one has begun is known before: whoever asked for
it waits. vLLM keeps a list of them and tells stat loggers nothing of it, but it makes its loggers
while it makes its engine, and the list is there by then. It is looked up once, and only read.
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
    """Return what counts the requests in flight of the engine that is just being made.

    It returns None where there is no such engine among the callers, as in another vLLM.
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
    """Return what a caller keeps its requests in; None if it is no engine."""
    try:
        # What is in the object itself: nothing of it is to be run.
        found = vars(caller).get("output_processor")
        return found if isinstance(found.request_states, dict) else None
    except Exception:  # noqa: BLE001 # anything may be among the callers
        return None


def _count(known: Callable[[], Any]) -> int | None:
    processor = known()
    if processor is None:
        return None
    # Copied at once: the engine's own thread adds and removes.
    states = list(processor.request_states.values())
    return sum(not _waits_for_words(state) for state in states)


def _waits_for_words(state: Any) -> bool:
    """Say whether it is a session that has been answered and may yet be told more."""
    return bool(getattr(state, "streaming_input", False)) and state.input_chunk_queue is None
