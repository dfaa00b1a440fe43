from __future__ import annotations

import pytest

from disagg_exporter.model.counted import agreeing, counted


@pytest.mark.parametrize(
    ("number", "words", "verb"),
    [
        (0, "0 engines", "are"),
        (1, "1 engine", "is"),
        (2, "2 engines", "are"),
        (1200, "1,200 engines", "are"),
    ],
)
def test_only_a_count_of_one_is_singular(number: int, words: str, verb: str) -> None:
    assert counted(number, "engine") == words
    assert agreeing(number, "is", "are") == verb
