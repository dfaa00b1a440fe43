"""How much of all GPU time a report covers, and how it states that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_cluster.inspect.report import wording
from disagg_cluster.inspect.report.coverage import coverage_of
from disagg_cluster.inspect.report.figures import report_of
from disagg_cluster.inspect.report.html import html
from disagg_cluster.inspect.report.markdown import markdown
from disagg_cluster.inspect.report.past import ACCOUNTED, SPLIT
from support.histories import curve, four_hours, half_a_week


def test_all_gpu_time_is_counted_unobserved_or_missing() -> None:
    known = coverage_of(half_a_week())

    assert known is not None
    assert (known.gpus, known.expected_gpu_hours) == (8.0, 32.0)
    assert known.accounted_gpu_hours == pytest.approx(22.0)
    assert known.unobserved == (("no_daemon", pytest.approx(1.5)), ("no_reading", 0.5))
    assert known.missing_gpu_hours == pytest.approx(8.0)
    assert known.accounted_ratio == pytest.approx(22 / 32)
    assert (known.nodes, known.nodes_part_time) == (2, 1)


def test_late_counts_are_included() -> None:
    """A gap of twenty minutes, after which all of it was known: hourly rates include it."""
    history = half_a_week(**{SPLIT: curve({("mixed", "idle"): (6.0, 7.0, 4.0, 4.0)}, (1.0,) * 4)})

    known = coverage_of(history)

    assert known is not None
    assert known.accounted_gpu_hours == pytest.approx(22.0)


@pytest.mark.parametrize("recorded", [None, curve({(): (None, None, 4.0, 4.0)}, (0.0, 0.0, 1, 1))])
def test_before_the_rule_was_recorded_the_split_is_used(recorded: object) -> None:
    known = coverage_of(half_a_week(**{ACCOUNTED: recorded}))  # type: ignore[arg-type]

    assert known is not None
    assert known.accounted_gpu_hours == pytest.approx(22.0)


def test_coverage_never_exceeds_100_percent() -> None:
    """Rates overshoot by some percent."""
    known = coverage_of(half_a_week(**{ACCOUNTED: curve({(): (8.3,) * 4}, (1.0,) * 4)}))

    assert known is not None
    assert (known.accounted_ratio, known.missing_gpu_hours) == (1.0, 0.0)


def test_a_week_of_which_a_daemon_was_down_for_half_is_not_called_covered() -> None:
    report = report_of(half_a_week(), None, None)

    for text in (markdown(report), html(report, 60.0)):
        assert "68.8 % of the GPU time is accounted for: 22.0 of 32.0 GPU-hours of 8 GPUs" in text
        assert "on 2 nodes. 1 of them was not seen all the time." in text
        assert "for the whole period" not in text
    assert "| Accounted for | 68.8 % | of GPU time |" in markdown(report)
    assert "| missing: not counted, or not scraped | 8.0 | 25.0 % |" in markdown(report)
    assert "| unobserved: no daemon ran | 1.5 | 4.7 % |" in markdown(report)
    assert "<h2>What is known</h2>" in html(report, 60.0)


def test_without_the_number_of_gpus_nothing_is_called_covered() -> None:
    report = report_of(four_hours(), None, None)

    assert report.coverage is None
    assert "| Accounted for | - | of GPU time |" in markdown(report)
    assert "How many GPUs there were is not recorded." in markdown(report)
    assert "What is known" not in markdown(report) + html(report, 60.0)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.0, "100.0 %"), (0.99999, "99.9 %"), (0.5, "50.0 %"), (1e-9, "0.1 %"), (0.0, "0.0 %")],
)
def test_only_full_coverage_is_100_percent_and_only_none_is_0(ratio: float, text: str) -> None:
    assert wording.almost(ratio) == text


def test_a_node_without_a_gpu_expects_nothing() -> None:
    history = replace(half_a_week(), gpus={("c", "a"): (0.0, None, None, None)})

    assert coverage_of(history) is None
