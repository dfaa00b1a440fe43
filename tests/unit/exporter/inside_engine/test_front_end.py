"""Requests in flight, found where vLLM keeps them: among the callers that create its loggers."""

from __future__ import annotations

import gc
from collections import deque
from functools import partial
from types import SimpleNamespace

import pytest

from disagg_exporter.inside_engine.disagg_steps.front_end import (
    Requests,
    count_in_flight,
    find_requests,
    first_token_ns,
)


class OutputProcessor:
    """Like vLLM's: an entry for each request that its engine has."""

    def __init__(self, states: object) -> None:
        self.request_states = states


class Engine:
    """Creates its loggers during construction, several calls below, as vLLM's `AsyncLLM` does."""

    def __init__(self, output_processor: object) -> None:
        self.output_processor = output_processor
        self.in_flight = partial(count_in_flight, Loggers().requests)


class Loggers:
    """Between an engine and a logger; has no requests."""

    def __init__(self) -> None:
        self.requests = self._make()

    def _make(self) -> Requests:
        return find_requests()


def test_requests_of_the_engine_being_created_are_counted() -> None:
    states: dict[str, object] = {}
    engine = Engine(OutputProcessor(states))

    before = engine.in_flight()
    states |= {"a": SimpleNamespace(), "b": SimpleNamespace(streaming_input=False)}

    assert (before, engine.in_flight()) == (0, 2)


def test_a_session_waiting_for_more_input_is_no_request() -> None:
    rests = SimpleNamespace(streaming_input=True, input_chunk_queue=None)
    works = SimpleNamespace(streaming_input=True, input_chunk_queue=deque())

    assert Engine(OutputProcessor({"a": rests, "b": works})).in_flight() == 1


class Hostile:
    """An object among the callers that raises on any attribute access."""

    def __init__(self) -> None:
        self.requests: Requests = find_requests()

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


@pytest.mark.parametrize("processor", [None, object(), OutputProcessor(None), OutputProcessor([])])
def test_an_engine_of_another_kind_is_not_counted(processor: object) -> None:
    assert Engine(processor).in_flight() is None


def test_hostile_objects_among_the_callers_raise_no_error() -> None:
    with pytest.raises(RuntimeError, match="requests"):
        Hostile().requests  # noqa: B018 # raised by the object itself: creation succeeded


def test_without_an_engine_among_the_callers_the_count_is_unknown() -> None:
    assert find_requests()() is None


def test_the_counter_keeps_no_engine_alive() -> None:
    engine = Engine(OutputProcessor({"a": SimpleNamespace()}))
    in_flight = engine.in_flight

    del engine
    gc.collect()

    assert in_flight() is None


def in_flight(scheduled: float, first: float, last: float) -> SimpleNamespace:
    stats = SimpleNamespace(scheduled_ts=scheduled, first_token_ts=first, last_token_ts=last)
    return SimpleNamespace(stats=stats)


def finished(tokens: int, prefill_time: float) -> SimpleNamespace:
    return SimpleNamespace(num_generation_tokens=tokens, prefill_time=prefill_time)


def test_first_tokens_are_those_of_requests_that_have_no_other() -> None:
    states = [in_flight(5.0, 5.25, 5.25), in_flight(1.0, 2.0, 5.25), in_flight(0.0, 0.0, 0.0)]

    assert first_token_ns(lambda: states, []) == 250_000_000
    assert first_token_ns(lambda: None, [finished(1, 0.5), finished(9, 3.0)]) == 500_000_000
    assert first_token_ns(lambda: [], []) == 0
