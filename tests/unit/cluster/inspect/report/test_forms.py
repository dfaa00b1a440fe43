from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from disagg_cluster.inspect.report import plots, wording
from disagg_cluster.inspect.report.figures import Report, report_of
from disagg_cluster.inspect.report.html import html
from disagg_cluster.inspect.report.markdown import markdown, sparkline
from disagg_cluster.inspect.report.past import SHOWBACK, Firing
from support.histories import ALERT, PERIOD, curve, four_hours

HOSTILE = '<script>alert(1)</script>|`*_"\n## x'


def report() -> Report:
    return report_of(four_hours(), "east", None)


def hostile() -> tuple[str, str]:
    """Both forms of a report whose labels are malicious."""
    rows = {(HOSTILE, HOSTILE, "prefill"): (1.0, None, 1.0, 1.0)}
    history = four_hours(**{SHOWBACK: curve(rows, (1.0, 0.0, 0.5, 1.0))})
    firing = Firing(ALERT | {"alertname": HOSTILE, "node": HOSTILE}, (float(PERIOD.start_seconds),))
    told = report_of(replace(history, firing=(firing,)), HOSTILE, None)
    return html(told, 60.0), markdown(told)


def bars_of_tables(text: str) -> list[set[int]]:
    """For each table of a Markdown text: the numbers of cell-separating bars of its rows."""
    tables = re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE)
    return [{len(re.findall(r"(?<!\\)\|", row)) for row in t.splitlines()} for t in tables]


def points(svg: str, kind: str) -> list[list[tuple[float, float]]]:
    """The corners of every shape of a kind."""
    found = re.findall(rf'class="{kind}" points="([^"]*)"', svg)
    return [[tuple(map(float, p.split(","))) for p in each.split()] for each in found]  # type: ignore[misc] # pairs


def test_areas_are_stacked_and_break_at_a_gap() -> None:
    svg = plots.stacked(PERIOD, {"a": (1, None, 2, 4), "b": (3, None, 0, 0)}, "GPUs", "label")

    first, second = points(svg, "a")
    assert first[0] == (48.0, plots.HEIGHT - 26 - (plots.HEIGHT - 36) / 4)
    assert min(x for x, _ in second) > max(x for x, _ in first)
    above = points(svg, "b")[0]
    assert above[0][1] == 10.0  # 1 + 3 is the top
    assert above[-1] == first[0]  # b stands on a
    ET.fromstring(svg)


def test_a_line_breaks_where_there_is_no_value() -> None:
    svg = plots.line(PERIOD, (0.5, None, 1.0, 0.0), "label", "share")

    assert [len(each) for each in points(svg, "share")] == [2, 4]
    assert svg.count("no samples") == 0  # a line has no gaps of its own: it may lack a value


def test_a_gap_is_named_where_there_is_room() -> None:
    svg = plots.stacked(PERIOD, {"a": (1, None, 2, 4)}, "GPUs", "label")

    assert svg.count("no samples") == 1


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.3, 0.4), (1, 1), (3.1, 4), (7, 8), (9, 10), (33, 40), (100, 100)]
)
def test_an_axis_ends_at_a_round_value_above(value: float, top: float) -> None:
    assert plots.nice_top(value) == pytest.approx(top)


def test_a_sparkline_has_eight_heights_and_a_space_for_a_gap() -> None:
    assert sparkline((0.0, None, 0.5, 1.0)) == "▁ ▄█"
    assert sparkline((0.4, 0.4)) == "▁▁"
    assert sparkline((None,)) == " "
    assert len(sparkline([0.1] * 500)) <= 72


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(60, "1 min"), (3600, "1 h"), (3900, "1 h 5 min"), (604_800, "7 d"), (180_000, "2 d 2 h")],
)
def test_lengths_of_time_are_short(seconds: float, text: str) -> None:
    assert wording.span(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (4.3e-7, "below 0.001"),
        (0.01234, "0.012"),
        (1.26, "1.3"),
        (99.95, "100.0"),
        (1e4, "10,000"),
    ],
)
def test_hours_have_meaningful_digits_only(value: float, text: str) -> None:
    assert wording.hours(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (1.8e-8, "below 0.001"), (0.084, "0.084"), (12.345, "12.35")],
)
def test_energy_is_never_written_with_an_exponent(value: float | None, text: str) -> None:
    assert wording.energy(value) == text


def test_the_markdown_is_a_whole_report() -> None:
    text = markdown(report())

    assert text.startswith("# Prefill and decode in east\n")
    assert "2025-11-19 16:00 to 2025-11-19 20:00 UTC" in text
    assert "samples for 62.5 % of the period" in text
    assert "| Prefill share | 40.0 % | of the busy GPU time |" in text
    assert "| no request | 5.0 | 10.00 USD |" in text
    assert "| ticket | DisaggWorkerDown | node gpu-7, worker decode-0 | 2025-11-19 16:10 |" in text
    assert all(len(bars) == 1 for bars in bars_of_tables(text))


def test_the_html_is_one_file_that_loads_nothing() -> None:
    text = html(report(), 60.0)

    assert "src=" not in text
    assert "http" not in re.sub(r'http-equiv="', "", text)
    assert "url(" not in text
    assert text.count('<svg class="plot"') == 2
    assert "default-src 'none'" in text


def test_labels_from_prometheus_stay_text() -> None:
    page, text = hostile()

    assert "<script>" not in page + text
    assert page.count("&lt;script&gt;") == 6
    assert re.search(r"^## x", text, flags=re.MULTILINE) is None
    assert all(len(bars) == 1 for bars in bars_of_tables(text))


def test_markdown_does_not_command_the_terminal_it_is_printed_on() -> None:
    title = markdown(report_of(four_hours(), "east\x1b[2J", None)).splitlines()[0]

    assert title == r"# Prefill and decode in east\\x1b\[2J"
