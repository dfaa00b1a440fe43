"""The names of found engines."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.discovery.observations.types import (
    MAX_NAME,
    MAX_REMEMBERED,
    EngineNames,
    Finder,
    FoundEngine,
    clean_name,
)


def engine(proposed_name: str, *keys: str) -> FoundEngine:
    return FoundEngine(
        keys=keys or (proposed_name,),
        proposed_name=proposed_name,
        kind="vllm",
        seen_by=(Finder.PROCESSES,),
    )


def names(book: EngineNames, *engines: FoundEngine) -> list[str]:
    given = {found.keys: found.name for found in book.name(engines)}
    return [given[found.keys] for found in engines]


@given(st.text(max_size=300))
def test_any_proposed_name_becomes_clean_and_short(proposed_name: str) -> None:
    name = clean_name(proposed_name)

    assert re.fullmatch(r"[a-z0-9-]+", name)
    assert len(name) <= MAX_NAME


def test_long_names_that_begin_alike_stay_different() -> None:
    assert clean_name("a" * 100 + "x") != clean_name("a" * 100 + "y")


def test_a_returning_engine_gets_its_name_back() -> None:
    book = EngineNames()
    first = names(book, engine("vllm-8000", "at 8000"), engine("vllm-8000", "elsewhere"))
    names(book)

    assert names(book, engine("vllm-8000", "elsewhere")) == first[1:]
    assert first == ["vllm-8000", "vllm-8000-2"]


def test_an_engine_keeps_its_name_when_it_begins_to_listen() -> None:
    book = EngineNames()
    assert names(book, engine("vllm-77", "process 77")) == ["vllm-77"]

    assert names(book, engine("vllm-8000", "process 77", "at 8000")) == ["vllm-77"]
    assert names(book, engine("vllm-8000", "process 99", "at 8000")) == ["vllm-77"]


def test_a_present_engine_keeps_its_name_from_a_similar_one() -> None:
    """Two containers may both have been told port 8000."""
    book = EngineNames()
    lives = engine("vllm-8000", "process 77", "port 8000")
    assert names(book, lives) == ["vllm-8000"]

    assert names(book, engine("vllm-8000", "process 99", "port 8000"), lives) == [
        "vllm-8000-2",
        "vllm-8000",
    ]


def test_the_names_of_our_own_workers_are_never_assigned() -> None:
    assert names(EngineNames(["router", "w"]), engine("w"), engine("router")) == ["w-2", "router-2"]


@given(st.lists(st.lists(st.sampled_from(["a", "b", "a-2", "A", "é"]), unique=True), max_size=8))
def test_names_stay_unique_when_engines_are_added_or_removed(rounds: list[list[str]]) -> None:
    book = EngineNames()
    for wishes in rounds:
        given = names(book, *(engine(proposed_name) for proposed_name in wishes))
        assert len(set(given)) == len(wishes)


def test_the_number_of_remembered_engines_is_bounded() -> None:
    book = EngineNames()
    for number in range(MAX_REMEMBERED + 1):
        names(book, engine(f"e{number}"))

    assert names(book, engine("other", "e0")) == ["other"]
    assert names(book, engine("other", "e9")) == ["e9"]


def test_the_next_daemon_keeps_the_names_of_engines() -> None:
    """Whichever of two similar ones it finds first; a worker's name stays the worker's."""
    before = EngineNames()
    alike = engine("vllm", "at 8000"), engine("vllm", "at 8001"), engine("worker", "at 8002")
    assert names(before, *alike) == ["vllm", "vllm-2", "worker"]

    after = EngineNames(["worker"])
    after.resume(before.by_key)
    assert names(after, *reversed(alike)) == ["worker-2", "vllm-2", "vllm"]
