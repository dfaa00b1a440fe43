"""Reads the requests that vLLM's front end has handed to its engine and not received back.

The record of a step is made when the step ends. That a step is running is known earlier, because
its requests are waiting. vLLM keeps a list of them and does not pass it to stat loggers, but it
creates its loggers while it creates its engine, when the list exists. The list is looked up once,
and only read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any
from weakref import ref

_MOST_CALLERS = 32


Requests = Callable[[], list[Any] | None]
"""Returns the states of the requests in flight; None if they are not known."""


def find_requests() -> Requests:
    """Return a function that lists the requests in flight of the engine now being created.

    It returns None if no such engine is among the callers, as in another vLLM version.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_CALLERS):
        if frame is None:
            break
        processor = _output_processor(frame.f_locals.get("self"))
        if processor is not None:
            return partial(_states, ref(processor))
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


def _states(known: Callable[[], Any]) -> list[Any] | None:
    processor = known()
    if processor is None:
        return None
    # Copied at once: the engine's own thread adds and removes.
    return list(processor.request_states.values())


def count_in_flight(requests: Requests) -> int | None:
    """Return how many requests the engine has not answered; None if that is not known."""
    states = requests()
    return None if states is None else sum(not _awaits_input(state) for state in states)


def first_token_ns(requests: Requests, finished: Iterable[Any]) -> int:
    """Return how long ago a request was scheduled whose first token has just been made.

    The longest where there are several, 0 where there is none. Both of its times are stamps of the
    engine's process.

    Args:
        requests: Those in flight.
        finished: What vLLM reports of requests that ended with this step.
    """
    seconds = [each.prefill_time for each in finished if each.num_generation_tokens == 1]
    for state in requests() or ():
        stats = state.stats
        if stats.scheduled_ts > 0 and stats.first_token_ts == stats.last_token_ts > 0:
            seconds.append(stats.first_token_ts - stats.scheduled_ts)
    return max(0, int(max(seconds, default=0.0) * 1e9))


def _awaits_input(state: Any) -> bool:
    """Return whether this is a session that has been answered and waits for more input."""
    return bool(getattr(state, "streaming_input", False)) and state.input_chunk_queue is None
