"""Pages read by the line layout of the page before give the same result as a full parse."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.engine_pages.exposition.layout import (
    MAX_KEPT_BYTES,
    MAX_LINE_BYTES,
    SeriesKeys,
)
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.model import EnginePage

DATA = Path(__file__).parents[4] / "data"
REAL = sorted(
    file for kind in ("vllm-0", "sglang", "trtllm") for file in DATA.glob(f"{kind}*/*.prom")
)
HEAD = b"# HELP a page\n"


def outcome(text: bytes, heads: SeriesKeys | None = None) -> tuple[EnginePage | None, str]:
    """Read a page, or say why it is none."""
    try:
        return parse_page(text, 0, heads), ""
    except PageError as error:
        return None, str(error)


def after(*pages: bytes) -> SeriesKeys:
    """What is remembered of these pages."""
    heads = SeriesKeys()
    for page in pages:
        outcome(page, heads)
    return heads


def is_read_quickly(page: bytes, heads: SeriesKeys) -> bool:
    return heads.read(page) is not None


numbers = st.one_of(
    st.integers(0, 10**20).map(str),
    st.floats(0, allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["-1", "1e+09", "1.5e-05", "NaN", "+Inf", "", "1 1700000000", "9" * 70, "x"]),
)
names = st.sampled_from(
    [
        "vllm:num_requests_running",
        "vllm:num_requests_running2",
        "vllm:num_rquests_running",
        "2vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:generation_tokens_total",
        "vllm:time_to_first_token_seconds_bucket",
        "python_info",
        "# TYPE vllm:num_requests_running",
        "",
    ]
)
labels = st.sampled_from(
    [
        "",
        "{}",
        '{engine="0"}',
        '{engine="1"}',
        '{engine="10"}',
        '{a="}"}',
        '{le="0.5"}',
        '{le="+Inf"}',
        " {",
    ]
)
rows = st.tuples(
    st.sampled_from(["", "", " ", "#"]), names, labels, st.sampled_from([" ", "\t", ""])
)


@given(st.data())
def test_any_page_after_any_page_is_read_as_if_it_were_the_first(data: st.DataObject) -> None:
    """Few names that differ by characters of numbers only, so that shapes are often the same."""
    layout = data.draw(st.lists(rows, max_size=6))
    heads = SeriesKeys()
    for _ in range(3):
        if data.draw(st.integers(0, 2)) == 0 and layout:
            place = data.draw(st.integers(0, len(layout) - 1))
            layout[place] = data.draw(rows)
        lines = ["".join(row) + data.draw(numbers) for row in layout]
        page = HEAD + "\n".join([*lines, ""]).encode()

        assert repr(outcome(page, heads)) == repr(outcome(page))


@given(st.sampled_from(REAL), st.randoms(use_true_random=False))
def test_changed_digits_anywhere_on_a_real_page_are_read_like_a_full_parse(
    file: Path, random: object
) -> None:
    text = file.read_bytes()
    heads = after(text)
    page = bytearray(text)
    digits = [match.start() for match in re.finditer(rb"[0-9]", text)]
    for place in random.choices(digits, k=3):  # type: ignore[attr-defined]
        page[place] = random.choice(b"0123456789.e")  # type: ignore[attr-defined]

    assert outcome(bytes(page), heads) == outcome(bytes(page))


@pytest.mark.parametrize("file", REAL, ids=lambda file: file.name)
def test_a_real_page_whose_values_grow_is_read_quickly(file: Path) -> None:
    text = file.read_bytes()
    heads = after(text)

    for added in ("1", "12345678"):
        page = re.sub(rb"(?m)([ ])([0-9.]+)$", rb"\g<1>" + added.encode() + rb"\g<2>", text)

        assert is_read_quickly(page, heads)
        assert outcome(page, heads) == outcome(page)


@pytest.mark.parametrize(
    "page",
    [
        HEAD + b'vllm:num_requests_running{engine="1"} 3\nother 1\n',
        HEAD + b'vllm:num_requests_running{engine="0"} 3\n',
        HEAD + b'other 1\nvllm:num_requests_running{engine="0"} 3\n',
        HEAD + b'vllm:num_requests_running{engine="0"} ' + b"9" * MAX_LINE_BYTES + b"\nother 1\n",
        HEAD + b'vllm:num_requests_running{engine="0"} 3-4\nother 1\n',
    ],
    ids=["another label", "a line less", "moved", "too long", "no number"],
)
def test_a_page_of_another_layout_is_parsed_in_full(page: bytes) -> None:
    heads = after(HEAD + b'vllm:num_requests_running{engine="0"} 3\nother 1\n')

    assert not is_read_quickly(page, heads)
    assert outcome(page, heads) == outcome(page)


def test_a_page_with_names_that_differ_only_in_digits_is_parsed_in_full() -> None:
    page = HEAD + b"vllm:num_requests_running 3\nvllm:num_requests_running7 3\n"
    other = HEAD + b"vllm:num_requests_running7 3\nvllm:num_requests_running 3\n"

    assert not is_read_quickly(page, after(page))
    assert outcome(other, after(page)) == outcome(other)


def test_a_name_with_an_added_digit_is_another_name() -> None:
    heads = after(HEAD + b"vllm:num_requests_running 53\nother 1\n")
    page = HEAD + b"vllm:num_requests_running5 3\nother 1\n"

    assert not is_read_quickly(page, heads)
    assert outcome(page, heads) == outcome(page)


@pytest.mark.parametrize(
    ("page", "other"),
    [
        (
            b"vllm:num_requests_running\t1\nvllm:num_requests_running x{y} 3\n",
            b"vllm:num_requests_running\t2\nvllm:num_requests_running 7\n",
        ),
        (
            b"vllm:num_requests_running 1\n# 1\n",
            b"vllm:num_requests_running 1\n# " + b"1" * MAX_KEPT_BYTES + b"\n",
        ),
    ],
    ids=["an unwanted line that begins like a wanted one", "more than is kept"],
)
def test_a_layout_that_cannot_be_remembered_is_parsed_in_full(page: bytes, other: bytes) -> None:
    heads = after(HEAD + page)

    assert not is_read_quickly(HEAD + other, heads)
    assert outcome(HEAD + other, heads) == outcome(HEAD + other)
