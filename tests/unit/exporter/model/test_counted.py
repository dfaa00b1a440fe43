from __future__ import annotations

import pytest

from disagg_cluster.host.counted import counted


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 engines"), (1, "1 engine"), (2, "2 engines"), (1200, "1,200 engines")],
)
def test_only_a_count_of_one_is_singular(number: int, words: str) -> None:
    assert counted(number, "engine") == words
