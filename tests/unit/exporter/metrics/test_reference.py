from pathlib import Path

from disagg_exporter.metrics.reference import reference
from disagg_exporter.metrics.table import FAMILIES

DOCS = Path(__file__).parents[4] / "docs"


def test_the_committed_reference_matches_the_table() -> None:
    """If it fails: python -m disagg_exporter.metrics.reference > docs/metrics.md."""
    assert (DOCS / "metrics.md").read_text() == reference()


def test_the_reference_names_every_family_once_as_a_row() -> None:
    text = reference()

    assert [text.count(f"| `{family.name}` |") for family in FAMILIES] == [1] * len(FAMILIES)
