"""Lines found from the end of a log are those that reading all of it would find."""

from __future__ import annotations

import tempfile
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.host import log_reading
from disagg_cluster.host.log_reading import FIRST, LinePlace, LogParts

NOW = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
OLD, NEW = "INFO 01-01 00:01:00 old", "INFO 01-01 00:06:00 new"
TEXTS = st.text(alphabet="ab\n", max_size=40)


def parts_of(folder: Path, *texts: str | None, until_bytes: int | None = None) -> LogParts:
    paths = [folder / f"{number}.log" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        if text is not None:
            path.write_text(text)
    size = len(texts[-1] or "") if until_bytes is None else until_bytes
    return LogParts(paths, size)


@given(st.lists(TEXTS, min_size=1, max_size=3), st.integers(0, 9), st.integers(1, 9))
def test_the_last_lines_do_not_depend_on_chunk_boundaries(
    texts: list[str], count: int, chunk_bytes: int
) -> None:
    lines = [line for text in texts for line in text.removesuffix("\n").split("\n") if text]
    wanted = [line for line in lines if "b" not in line]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reading, "_CHUNK_BYTES", chunk_bytes)
        parts = parts_of(Path(name), *texts)

        assert [*parts.last(count, lambda line: "b" not in line)] == wanted[-count:] * (count > 0)
        assert [line for _, line in parts.backwards()] == lines[::-1]
        assert [*parts.forwards(FIRST)] == lines


def test_lines_written_after_the_bound_are_not_read(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, "one\ntwo and more\n", until_bytes=len("one\ntwo"))

    assert [*parts.last(9, bool)] == ["one", "two"]


def test_an_older_part_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert [*parts_of(tmp_path, None, "one\n", "two\n").last(2, bool)] == ["one", "two"]
    assert [*parts_of(tmp_path / "none", None).last(2, bool)] == []


def test_lines_since_a_moment_include_those_without_a_time(tmp_path: Path) -> None:
    old, new = f"{OLD}\nmore of old\n", f"{NEW}\nmore of new\n"
    begin = NOW - timedelta(minutes=5)

    parts = parts_of(tmp_path, old + new, "goes on\n")
    first = parts.first_since(begin, NOW)

    assert first == LinePlace(0, len(old))
    assert [*parts.forwards(first)] == [NEW, "more of new", "goes on"]
    assert [*parts.last(1, bool, first)] == ["goes on"]
    assert parts_of(tmp_path, old, "no time\n").first_since(begin, NOW) is None


def test_memory_for_reading_a_log_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "huge.log"
    with log.open("wb") as file:
        file.write(b"%099d\n" % 7 * 10_000)
        file.truncate(3_000_000_000)  # a line that never ends, and takes no room
    parts = LogParts((log,), 1_000_000 + 5_000)
    tracemalloc.start()
    try:
        shown = sum(1 for _ in parts.last(9_000, bool))
        [endless] = (line for line in LogParts((log,), 9_000_000).last(1, bool))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert shown == 9_000
    assert len(endless) == log_reading.MOST_LINE_BYTES
    assert peak_bytes < 6_000_000
