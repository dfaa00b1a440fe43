"""The text of a page compared with the client library's for the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from disagg_exporter.metrics.family import MetricRows, MetricType
from disagg_exporter.metrics.page_cache import PageText
from disagg_exporter.metrics.render import rows_of
from disagg_exporter.metrics.table import FAMILIES
from support.client_metrics import families_of
from support.snapshots import FRESH_UNTIL_NS, TAKEN_NS, golden_snapshot

ROWS = [family for family in FAMILIES if family.kind is not MetricType.HISTOGRAM]


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _by_library(rows: MetricRows, *, as_openmetrics: bool) -> bytes:
    write: Callable[[Collector], bytes] = generate_latest
    if as_openmetrics:
        write = openmetrics.generate_latest
    return write(_Families(families_of(rows)))


@pytest.mark.parametrize("as_openmetrics", [False, True])
@pytest.mark.parametrize("now_ns", [TAKEN_NS, FRESH_UNTIL_NS + 1])
def test_the_golden_page_matches_that_of_the_client_library(
    now_ns: int, as_openmetrics: bool
) -> None:
    rows, text = rows_of(golden_snapshot(), now_ns), PageText()

    pages = [text.write(rows, openmetrics=as_openmetrics) for _ in range(2)]

    assert pages == [_by_library(rows, as_openmetrics=as_openmetrics)] * 2


@pytest.mark.parametrize("as_openmetrics", [False, True])
def test_names_are_escaped_by_dots_as_the_library_does(as_openmetrics: bool) -> None:
    rows = rows_of(golden_snapshot(), TAKEN_NS)
    write = openmetrics.generate_latest if as_openmetrics else generate_latest

    page = PageText(dots=True).write(rows, openmetrics=as_openmetrics)

    assert page == write(_Families(families_of(rows)), escaping="dots")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ROWS),
            st.lists(st.text(max_size=8), min_size=9, max_size=9),
            st.floats() | st.integers(-(2**60), 2**60),
        ),
        max_size=12,
    ),
    st.booleans(),
)
@example([(family, [""] * 9, -0.0) for family in ROWS], True)
@example([(family, [""] * 9, 2**53 + 1) for family in ROWS], False)
def test_any_labels_and_values_match_the_client_library(
    rows: list[tuple[object, list[str], float]], as_openmetrics: bool
) -> None:
    """Quotes, line ends, backslashes, surrogates; infinite, tiny and huge numbers, or none."""
    page_rows = MetricRows()
    for family, labels, value in rows:
        page_rows.set(family.name, value, *labels[: len(family.labels)])  # type: ignore[attr-defined]

    page = PageText().write(page_rows, openmetrics=as_openmetrics)

    assert page == _by_library(page_rows, as_openmetrics=as_openmetrics)


@given(
    st.lists(
        st.dictionaries(
            st.tuples(st.sampled_from("ab \\"), st.sampled_from(["prefill", "1 2"])),
            st.sampled_from([0, 1, 0.5, 2.0**70, 999_999.5, 1e6, float("nan"), float("inf")]),
            max_size=4,
        ),
        min_size=2,
        max_size=4,
    )
)
def test_each_of_several_pages_matches_the_client_library(
    pages: list[dict[tuple[str, str], float]],
) -> None:
    """Whichever rows were added, removed or changed since the one before."""
    text = PageText()
    for page in pages:
        rows = MetricRows()
        for (engine, role), value in page.items():
            rows.set("disagg_engine_steps_total", value, engine, role, "m")

        assert text.write(rows, openmetrics=False) == _by_library(rows, as_openmetrics=False)


def test_removed_rows_are_dropped_and_may_return() -> None:
    text, name = PageText(), "disagg_engine_up"
    there, gone = MetricRows(), MetricRows()
    there.set(name, 1, "a")
    gone.set(name, 1, "b")

    pages = [text.write(rows, openmetrics=False) for rows in (there, gone, there)]

    assert [b'"a"' in page for page in pages] == [True, False, True]
