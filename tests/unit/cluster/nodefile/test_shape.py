"""The JSON schema of node files, held against the files that we know to be right and wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_cluster.nodefile.shape import DIALECT, node_file_schema
from support.json_schemas import fits

ROOT = Path(__file__).parents[4]
DATA = ROOT / "tests" / "data" / "nodefiles"
# The one that is no node file is for Docker.
EXAMPLES = {*(ROOT / "examples").glob("*.yaml")} - {ROOT / "examples" / "compose.yaml"}
RIGHT = [*sorted(EXAMPLES), DATA / "pair.yaml", DATA / "routed.yaml"]
MISSHAPEN = [
    *("choices", "gpu-price", "gpu-price-currency", "intervals"),
    *("log-and-signals", "misplaced-keys", "missing-keys", "misspelt-worker-keys"),
    *("nothing-given", "not-a-mapping", "ports-range", "restart", "router-values"),
    *("tensor-parallel-zero", "unknown-key", "worker-name", "workers-not-a-list", "wrong-types"),
]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.name)
def test_a_valid_file_matches_the_schema(path: Path) -> None:
    assert fits(read(path), node_file_schema())


@pytest.mark.parametrize("name", MISSHAPEN)
def test_an_invalid_file_does_not_match_the_schema(name: str) -> None:
    assert not fits(read(DATA / f"invalid-{name}.yaml"), node_file_schema())


def test_the_schema_has_its_dialect_and_a_title() -> None:
    schema = node_file_schema()

    assert (schema["$schema"], schema["title"]) == (DIALECT, "Node file of disagg-node")


def test_no_property_of_the_schema_has_a_title() -> None:
    schema: Any = node_file_schema()

    fields = [
        field
        for section in (schema, *schema["$defs"].values())
        for field in section.get("properties", {}).values()
    ]
    assert len(fields) > 60
    assert not [field for field in fields if "title" in field]
