from __future__ import annotations

from pathlib import Path

import pytest

from disagg_cluster.planner.compare.comparison import (
    Comparison,
    MeasuredChange,
    UnknownMeasure,
)
from disagg_cluster.planner.compare.comparison_figure import draw_comparison
from disagg_cluster.planner.compare.comparison_text import MEASURE_WORDS, comparison_text
from disagg_cluster.planner.compare.matching import UndecidedComparison
from support.pictures import texts_of

BEFORE, AFTER = (1_700_000_000.0, 1_700_007_200.0), (1_700_604_800.0, 1_700_612_000.0)
GOOD = MeasuredChange(
    "tokens_per_gpu_second", "tokens/s/GPU", 812.5, 1020.25, 0.256, 0.1, 0.4, True
)
HUGE = MeasuredChange(
    "joules_per_million_tokens", "J", 1.23456e7, 9.87654e9, 799.0, -0.999, 1e3, False
)
BARE = UnknownMeasure(
    "time_to_first_token_p95_seconds", "s", "fewer than 30 matched minutes have it"
)
FOUND = Comparison((GOOD, HUGE, BARE), (0.9, 1.0), ("10 minutes before: 3 requests/s",))


def test_each_measure_is_a_line_with_its_unit_and_the_table_fits_a_terminal() -> None:
    text = comparison_text(FOUND, BEFORE, AFTER)

    lines = text.splitlines()
    assert lines[0] == "before: 2023-11-14 22:13 to 2023-11-15 00:13 UTC"
    assert lines[2] == "matched: 90% of the minutes before, 100% of those after"
    assert lines[5].split() == [
        "tokens/s/GPU",
        "812.5",
        "1020",
        "+25.6%",
        "+10.0%",
        "to",
        "+40.0%",
        "better",
    ]
    assert lines[6].endswith("unsure")
    assert lines[7].endswith("undecided: fewer than 30 matched minutes have it")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("found", [FOUND, UndecidedComparison("nothing is alike")])
def test_a_figure_shows_known_measures_and_why_others_are_unknown(
    found: Comparison | UndecidedComparison, tmp_path: Path
) -> None:
    path = tmp_path / "change.svg"

    draw_comparison(found, path)

    texts = set(texts_of(path))
    if isinstance(found, UndecidedComparison):
        # And no axis of changes that nobody knows.
        assert texts == {"undecided: nothing is alike"}
        return
    assert {MEASURE_WORDS[each.name] for each in found.measures} <= texts
    assert {"better", "no sure difference", f"undecided: {BARE.why}"} <= texts
