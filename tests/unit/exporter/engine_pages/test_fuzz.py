"""Hostile pages: no exception but PageError, and no more memory than allowed."""

import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_exporter.engine_pages.adapters import ADAPTERS
from disagg_exporter.engine_pages.exposition import layout
from disagg_exporter.engine_pages.exposition.layout import (
    MAX_LINE_BYTES,
    MAX_WANTED_BYTES,
    MAX_WANTED_LINES,
    SeriesKeys,
)
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.engine_pages.window import CumulativeCounts, window
from disagg_exporter.model import EnginePage, Histogram

DATA = Path(__file__).parents[3] / "data"
GOLDEN = [
    file
    for kind in ("vllm-0", "sglang", "trtllm", "dynamo")
    for file in sorted(DATA.glob(f"{kind}*/*.prom"))
]
NAMES = sorted({name for adapter in ADAPTERS for name in adapter.names})


def outcome(
    text: bytes, t_ns: int = 0, heads: SeriesKeys | None = None
) -> tuple[EnginePage | None, str]:
    """Read a page, or say why it is none."""
    try:
        return parse_page(text, t_ns, heads), ""
    except PageError as error:
        return None, str(error)


def numbers(page: EnginePage) -> Iterator[float]:
    """Every number that a page gave."""
    for name in page.__slots__:
        value = getattr(page, name)
        if isinstance(value, float):
            yield value
    yield from page.serving.totals.values()
    for histogram in (page.serving.time_to_first_token, page.serving.inter_token_latency):
        if histogram is not None:
            yield from histogram.counts
            yield histogram.sum


def is_sane(histogram: Histogram | None) -> bool:
    return histogram is None or list(histogram.counts) == sorted(histogram.counts)


labels = st.dictionaries(
    st.sampled_from(["le", "engine", "tp_rank", "dp_rank", "pp_rank", "priority", "reason"]),
    st.sampled_from(["", "0", "1", "-1", "capacity", "+Inf", "0.1", "NaN", "9" * 40, 'a\\"}', "é"]),
    max_size=4,
)
values = st.sampled_from(["0", "1", "2.5", "-1", "NaN", "+Inf", "1e400", "1e300", "", "x", "1 2"])


def line(name: str, pairs: dict[str, str], value: str) -> bytes:
    inside = ",".join(f'{label}="{text}"' for label, text in pairs.items())
    return f"{name}{{{inside}}} {value}".encode()


lines = st.builds(line, st.sampled_from(NAMES), labels, values)


@given(st.lists(lines | st.binary(max_size=12), max_size=20))
def test_any_lines_of_wanted_names_give_a_sane_page_or_a_page_error(page: list[bytes]) -> None:
    read, why = outcome(b"\n".join(page) + b"\n")

    assert why.isprintable()
    assert len(why) < 300
    if read is None:
        return
    assert all(0 <= number < math.inf for number in numbers(read))
    assert is_sane(read.serving.time_to_first_token)
    assert is_sane(read.serving.inter_token_latency)


@given(st.sampled_from(GOLDEN), st.data())
def test_a_real_page_with_bytes_changed_is_read_or_refused(file: Path, data: st.DataObject) -> None:
    """Bytes are cut, changed or inserted."""
    text = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        kind = data.draw(st.sampled_from(["cut", "flip", "insert"]))
        if kind == "cut":
            del text[at : at + data.draw(st.integers(1, 200))]
        elif kind == "flip":
            text[at] = data.draw(st.integers(0, 255))
        else:
            text[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    read, _ = outcome(bytes(text))

    assert read is None or all(0 <= number < math.inf for number in numbers(read))


@given(st.lists(st.lists(lines, max_size=12), min_size=2, max_size=6))
def test_no_sequence_of_pages_makes_a_count_fall(pages: list[list[bytes]]) -> None:
    """Also with a memory of earlier pages, which must read each as if it were the first."""
    heads, tally, before = SeriesKeys(), CumulativeCounts(), None
    floor: dict[object, float] = {}
    for t_ns, page in enumerate(pages):
        text = b"\n".join([*page, b"vllm:num_requests_running 1"]) + b"\n"
        read, why = outcome(text, t_ns, heads)
        assert (read, why) == outcome(text, t_ns)
        if read is None:
            continue
        tally.ingest(read)
        assert tally.counts is not None
        for total, count in tally.counts.totals.items():
            assert count >= floor.get(total, 0.0)
            floor[total] = count
        if before is not None:
            did = window(before, read)
            assert all(
                part is None or part >= 0
                for part in (did.computed_tokens, did.generation_tokens, did.prefill_seconds)
            )
        before = read


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(GOLDEN), st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_matter(file: Path, random: Random) -> None:
    text = file.read_bytes()
    rows = [row for row in text.splitlines() if not row.startswith(b"#")]
    random.shuffle(rows)

    assert parse_page(b"\n".join(rows) + b"\n", 0) == parse_page(text, 0)


def test_samples_that_follow_another_family_unannounced_are_found() -> None:
    page = (
        b"# HELP vllm:lora_info x\n# TYPE vllm:lora_info gauge\nvllm:lora_info 1\n"
        b"vllm:num_requests_running 3\n"
        b"# HELP vllm:other x\n# TYPE vllm:other gauge\nvllm:other 1\n"
        b"# HELP vllm:empty x\n# TYPE vllm:empty gauge\n"
        b"# HELP vllm:last x\n# TYPE vllm:last gauge\n"
        b"vllm:num_requests_waiting 4\n"
    )

    assert (parse_page(page, 0).running, parse_page(page, 0).waiting) == (3, 4)


def peak_bytes(text: bytes) -> int:
    """The memory that reading a page took beside the page itself."""
    tracemalloc.start()
    outcome(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    "text",
    [
        b"# HELP nothing of ours\n" * 200_000,
        b"\n" * 8_000_000,
        b"x" * 8_000_000 + b"\n",
        b"vllm:num_requests_running" + b"x" * 8_000_000 + b" 1\n",
        b'vllm:num_requests_running{a="' + b"x" * 8_000_000 + b'"} 1\n',
        b"vllm:num_requests_running " + b"9" * 8_000_000 + b"\n",
        b"".join(b'vllm:num_requests_running{a="%d"} 1\n' % n for n in range(50_000)),
    ],
    ids=["comments", "empty", "one line", "a name", "a label", "a value", "samples"],
)
def test_a_page_of_maximum_size_is_parsed_in_bounded_memory(text: bytes) -> None:
    """Beside the page: one line at a time, and the series that are read."""
    assert peak_bytes(text) < 24_000_000


def test_memory_for_labels_that_never_repeat_is_bounded() -> None:
    heads = SeriesKeys()

    tracemalloc.start()
    for look in range(8):
        page = b"".join(
            b'vllm:num_requests_running{engine="%d"} 1\n' % (4000 * look + n) for n in range(4000)
        )
        assert parse_page(page, look, heads).running == 4000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 32_000_000


def test_memory_for_long_labels_that_never_repeat_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layout, "MAX_WANTED_BYTES", 100_000)
    heads = SeriesKeys()

    tracemalloc.start()
    for look in range(30):
        page = b"".join(
            b'vllm:num_requests_running{engine="%d%b"} 1\n' % (50 * look + n, b"x" * 600)
            for n in range(50)
        )
        assert parse_page(page, look, heads).running == 50
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1_500_000


def test_the_limits_leave_room_for_a_hundred_ranks() -> None:
    text = (DATA / "vllm-0.32.0" / "nixl_decode.prom").read_bytes()
    lines = text.splitlines(keepends=True)
    of_rank = b"".join(line for line in lines if b'engine="0"' in line)
    page = b"".join(of_rank.replace(b'engine="0"', b'engine="%d"' % rank) for rank in range(100))

    assert parse_page(page, 0).serving.time_to_first_token is not None
    assert (MAX_LINE_BYTES, MAX_WANTED_BYTES, MAX_WANTED_LINES) == (4096, 2**21, 20_000)
