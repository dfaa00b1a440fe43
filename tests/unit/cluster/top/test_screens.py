"""Whole screens, kept as text in tests/data/top (`python -m support.top_screens` writes them)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from disagg_cluster.top.screen.controls import Controls, ScreenPage
from disagg_cluster.top.screen.lines import ASCII, UNICODE, plain, width_of
from disagg_cluster.top.screen.numbers import count
from disagg_cluster.top.screen.screen import LEAST_WIDTH, screen
from disagg_cluster.top.screen.sections import users
from support import top_looks, top_screens


@pytest.mark.parametrize("name", top_screens.NAMES)
def test_a_screen_matches_its_golden_file(name: str) -> None:
    kept = (top_screens.FOLDER / f"{name}.txt").read_text(encoding="utf-8")

    assert top_screens.drawn(name) == kept


@pytest.mark.parametrize("page", ScreenPage)
@pytest.mark.parametrize("size", [(LEAST_WIDTH, 8), (61, 13), (80, 24), (133, 37), (400, 120)])
def test_a_screen_has_exactly_the_size_of_the_terminal(
    page: ScreenPage, size: tuple[int, int]
) -> None:
    width, height = size

    for view in (top_screens.sixteen_gpus(), top_screens.cluster(), top_screens.empty_node()):
        lines = screen(view, Controls(page=page), width, height, UNICODE)
        assert [width_of(line) for line in lines] == [width] * height


def test_ascii_screens_have_only_ascii_characters() -> None:
    view = top_screens.cluster()

    lines = [screen(view, Controls(page=page), 120, 40, ASCII) for page in ScreenPage]

    assert all(plain(line).isascii() for page in lines for line in page)


def test_hostile_names_are_escaped_and_keep_the_width_of_lines() -> None:
    rows = top_looks.a_node()
    top_looks.add_engine(rows, "evil\x1b[2Jname\n", "prefill", model="模型" * 40)
    view = top_looks.viewed([(rows, top_looks.AT)])

    lines = screen(view, Controls(), 100, 30, UNICODE)

    text = "\n".join(map(plain, lines))
    assert "\x1b" not in text
    assert "evil?[2Jname?" in text
    assert {cell_len("".join(span.text for span in line)) for line in lines} == {100}


def test_once_shows_every_row_and_no_keys() -> None:
    view = top_screens.sixteen_gpus()

    text = "\n".join(plain(line) for line in screen(view, Controls(), 120, None, UNICODE))

    assert sum(line.startswith(("prefill-", "decode-")) for line in text.splitlines()) == 80
    assert "quit" not in text


def test_unknown_values_are_shown_as_a_hyphen_and_never_as_0() -> None:
    view = top_screens.unknown_values()

    [engine] = view.engines
    figures = (engine.running, engine.waiting, engine.kv_used_ratio, engine.tokens_per_second)
    assert (*figures, engine.used_ratio, engine.first_token_p95_seconds) == (None,) * 6
    row = next(
        plain(line)
        for line in screen(view, Controls(), 80, 24, UNICODE)
        if plain(line).startswith("10.0.0.7")
    )
    assert row.split()[2:10] == ["-"] * 8


def test_a_long_reason_beside_an_empty_one_is_wrapped() -> None:
    view = top_screens.failed_node()
    first, second = view.workers
    why = "ended unasked by signal 9 (Killed): the limit of its control group was exceeded " * 2
    told = replace(first, reason=why), replace(second, reason="", next_start_seconds=None)

    shown = screen(replace(view, workers=told), Controls(), 120, None, UNICODE)

    said = " ".join(" ".join(map(plain, shown)).split())
    assert why.strip() in said


@pytest.mark.parametrize("by_node", [False, True])
def test_engines_on_cpus_beside_gpus_are_not_counted_as_gpus(*, by_node: bool) -> None:
    view = top_screens.gpus_and_cpu_engines()

    text = "\n".join(map(plain, screen(view, Controls(by_node=by_node), 160, None, UNICODE)))

    assert ("DEVICES" if by_node else "4 devices") in text
    assert "4 GPUs" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9999, "9999"),
        (10_000, "10k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (1.25e9, "1.25G"),
        (999.6e9, "1T"),
    ],
)
def test_a_count_has_at_most_four_digits_and_a_unit(value: float, text: str) -> None:
    assert count(value) == text


def test_rates_of_less_than_the_minute_in_the_head_say_over_how_long() -> None:
    """As with --once, whose two readings of a node are a second apart."""
    minute = replace(top_screens.sixteen_gpus(), arrivals_per_second=20.0, rates_seconds=60.0)

    [line] = users(minute)
    [young] = users(replace(minute, rates_seconds=1.2))

    assert plain(line).startswith("users   20 requests/s arrive")
    assert plain(young).startswith("users   over 1 s: 20 requests/s arrive")
