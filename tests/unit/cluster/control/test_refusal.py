from pathlib import Path

from disagg_cluster.control.refusal import RefusalReason

ROOT = Path(__file__).parents[4]


def test_the_documentation_says_what_each_reason_means() -> None:
    rows = (ROOT / "docs" / "control.md").read_text().splitlines()
    told = " ".join(row.split("|")[1] for row in rows if row.startswith("| `"))

    assert [reason for reason in RefusalReason if f"`{reason}`" not in told] == []
