"""What the keys choose."""

from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.top.screen.controls import (
    Controls,
    EngineOrder,
    ScreenPage,
    pressed,
    selected_engine,
    shown_engines,
    shown_gpus,
)
from disagg_cluster.top.screen.lines import UNICODE, width_of
from disagg_cluster.top.screen.screen import screen
from support import top_screens

VIEW = top_screens.sixteen_gpus()
KEYS = ("up", "down", "left", "right", "pageup", "pagedown", "enter", "escape", "backspace")


def after(*keys: str, controls: Controls | None = None) -> Controls:
    return reduce(lambda now, key: pressed(now, key, VIEW), keys, controls or Controls())


def test_sorting_puts_the_largest_first_and_the_unknown_last() -> None:
    engines = shown_engines(top_screens.cluster(), Controls(order=EngineOrder.USED))

    used = [engine.used_ratio for engine in engines]
    assert used == sorted(used, key=lambda ratio: -(ratio or 0))


def test_the_s_key_cycles_through_all_orders() -> None:
    orders = [after(*"s" * times).order for times in range(len(EngineOrder) + 1)]

    assert orders == [*EngineOrder, EngineOrder.NAME]


def test_a_typed_filter_applies_until_escape_clears_it() -> None:
    typed = after("/", *"DECODE-1", "enter")

    assert {engine.engine for engine in shown_engines(VIEW, typed)} == {
        "decode-1",
        *(f"decode-1{digit}" for digit in range(10)),
    }
    assert typed.typing is False
    assert shown_engines(VIEW, after("escape", controls=typed)) == VIEW.engines


def test_a_filter_keeps_the_devices_of_matching_engines() -> None:
    gpus = shown_gpus(VIEW, after("/", *"prefill-3", "enter"))

    assert [gpu.index for gpu in gpus] == ["3"]


def test_command_keys_are_text_while_a_filter_is_typed() -> None:
    assert after("/", "q", "s").filter == "qs"


def test_the_selection_stays_within_the_shown_engines() -> None:
    first, last = VIEW.engines[0], VIEW.engines[-1]

    assert selected_engine(VIEW, after("up")) is first
    assert selected_engine(VIEW, after(*["down"] * 100)) is last


def test_enter_shows_the_selected_engine_and_escape_goes_back() -> None:
    chosen = after("down", "enter")

    assert chosen.page is ScreenPage.ENGINE
    assert after("escape", controls=chosen).page is ScreenPage.MAIN


def test_q_goes_back_from_other_pages_and_quits_from_the_main_one() -> None:
    assert not after("?", "q").ended
    assert after("?", "q", "q").ended


@given(st.lists(st.sampled_from(KEYS) | st.characters(codec="ascii"), max_size=20))
def test_the_screen_has_the_terminals_size_after_any_keys(keys: list[str]) -> None:
    controls = after(*keys)

    lines = screen(VIEW, controls, 80, 24, UNICODE)

    assert [width_of(line) for line in lines] == [80] * 24


@given(st.lists(st.sampled_from(KEYS) | st.characters(), max_size=10))
def test_an_interrupt_always_quits(keys: list[str]) -> None:
    assert after(*keys, "interrupt").ended
