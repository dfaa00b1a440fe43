from __future__ import annotations

from disagg_cluster.host.columns import columns


def test_columns_are_as_wide_as_their_widest_cell_and_lines_end_with_text() -> None:
    rows = [("NAME", "COUNT", "NOTE"), ("a", "1,000", ""), ("longer", "2", "x")]

    assert columns(rows, right=(1,)) == "NAME    COUNT  NOTE\na       1,000\nlonger      2  x"


def test_the_last_cell_of_a_short_row_widens_no_column() -> None:
    rows = [("A", "B", "C"), ("1", "a sentence that goes on"), ("1", "2", "3")]

    assert columns(rows) == "A  B  C\n1  a sentence that goes on\n1  2  3"


def test_cells_before_the_last_one_of_a_short_row_widen_their_columns() -> None:
    rows = [("A", "B", "C"), ("longer", "a sentence"), ("b", "another")]

    assert columns(rows) == "A       B  C\nlonger  a sentence\nb       another"
