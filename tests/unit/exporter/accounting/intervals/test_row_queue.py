"""Rows come out as they went in, however memory is used again; and memory is given back."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.intervals.row_queue import RowQueue

ROW = np.dtype([("number", np.int64), ("flag", np.bool_)])


def _rows(first: int, count: int) -> np.ndarray:
    rows = np.zeros(count, ROW)
    rows["number"] = np.arange(first, first + count)
    return rows


@given(st.lists(st.tuples(st.sampled_from(["add", "drop", "replace"]), st.integers(0, 700))))
def test_a_row_queue_behaves_like_a_list(moves: list[tuple[str, int]]) -> None:
    queue, plain, number = RowQueue(ROW), [], 0
    for move, count in moves:
        match move:
            case "add":
                queue.add(_rows(number, count))
                plain += range(number, number + count)
                number += count
            case "drop":
                queue.drop(min(count, len(plain)))
                del plain[:count]
            case _:
                queue.replace(queue.rows[count:])
                del plain[:count]
        assert queue.rows["number"].tolist() == plain
        assert len(queue) == len(plain)


def test_memory_of_a_burst_is_released() -> None:
    queue, rows = RowQueue(ROW), _rows(0, 100_000)
    tracemalloc.start()
    try:
        queue.add(rows)
        held_bytes, _ = tracemalloc.get_traced_memory()
        queue.drop(100_000)
        left_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held_bytes >= rows.nbytes
    assert left_bytes < rows.nbytes / 10
