"""Types are checked where `make test` sees nothing go stale: in the tests that it leaves out."""

import re
import tomllib
from pathlib import Path

TESTS = Path(__file__).parents[1]
LEFT_OUT = re.compile(r"pytest\.mark\.(long|vllm_long|dynamo_long|gpu)\b")


def test_the_types_of_every_test_that_make_test_leaves_out_are_checked() -> None:
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    left_out = [
        ".".join(path.relative_to(TESTS).with_suffix("").parts)
        for path in sorted(TESTS.rglob("test_*.py"))
        if LEFT_OUT.search(path.read_text(encoding="utf-8"))
    ]

    assert project["tool"]["mypy"]["modules"] == left_out
