"""A text in JSON says the same as YAML: what programs of ours write is read as they meant it."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from disagg_cluster.nodefile.yaml_positions import read_yaml

SCALARS = st.none() | st.booleans() | st.integers() | st.text("aeE.-1", max_size=5)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.text("abc1e5", max_size=3), st.lists(SCALARS | NUMBERS, max_size=4)))
@example({"small": [9e-05], "large": [1e22]})
def test_json_is_read_with_unchanged_values(told: dict[str, list[object]]) -> None:
    found = read_yaml(json.dumps(told))

    assert (found.value, found.findings) == (told, ())


def test_a_string_that_resembles_scientific_notation_stays_a_string() -> None:
    """Such as the hash of a commit."""
    assert read_yaml("revision: 12e4567").value == {"revision": "12e4567"}
