"""Whether a node file was written since it was taken in, is wrong, or gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from disagg_cluster.nodefile.freshness import NodeFileFreshness, stamp_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text("workers: []\n", encoding="utf-8")
    return path


def test_an_unchanged_file_gives_no_message(file: Path) -> None:
    assert NodeFileFreshness(file).text() == ""
    assert NodeFileFreshness(None).text() == ""


def test_a_changed_file_is_reported_until_it_is_ingested(file: Path) -> None:
    freshness = NodeFileFreshness(file)
    file.write_text("workers: []  # more\n", encoding="utf-8")
    assert freshness.text().startswith(f"{file} was written since it was taken in; ")

    freshness.accept(stamp_of(file))
    assert freshness.text() == ""


def test_a_refused_file_is_reported_until_it_is_changed(file: Path) -> None:
    freshness = NodeFileFreshness(file)
    file.write_text("workers: nonsense\n", encoding="utf-8")
    freshness.refuse(stamp_of(file), 2)
    assert freshness.text().startswith(f"{file} has 2 problems, so what was read before holds; ")

    file.write_text("workers: [less nonsense]\n", encoding="utf-8")
    assert "was written since" in freshness.text()


def test_a_deleted_file_is_reported(file: Path) -> None:
    freshness = NodeFileFreshness(file)
    file.unlink()

    assert freshness.text().startswith(f"{file} cannot be read: ")
