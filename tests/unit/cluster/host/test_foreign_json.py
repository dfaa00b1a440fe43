"""Content that others choose may be anything, and is at worst an error."""

from __future__ import annotations

import pytest

from disagg_cluster.host.foreign_json import TooDeepError, parse_foreign
from support.collected import is_collected_in_json


@pytest.mark.parametrize("text", [b'{"a": [1, null]}', '{"a": [1, null]}'])
def test_json_is_parsed(text: str | bytes) -> None:
    assert parse_foreign(text) == {"a": [1, None]}


@pytest.mark.parametrize("text", ["[" * 100_000, b'{"a":' * 100_000], ids=["lists", "objects"])
def test_json_that_is_nested_too_deep_is_an_error_like_others(text: str | bytes) -> None:
    def read() -> None:
        with pytest.raises(TooDeepError):
            parse_foreign(text)

    # At its depth nothing can be finalized.
    assert not is_collected_in_json(read)


@pytest.mark.parametrize(
    "text", ["", "{", b"\xff", "1" * 10_000], ids=["none", "cut", "bytes", "digits"]
)
def test_what_is_no_json_is_an_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_foreign(text)
