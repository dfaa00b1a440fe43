from __future__ import annotations

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main

NOWHERE = ("--prometheus", "http://127.0.0.1:9")


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["compare", *args, *NOWHERE], prog_name="disagg-node")
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2025-11-01T10:00/2h", "2025-11-01T11:59/2h"),
        ("2025-11-08T10:00/2h", "2025-11-01T10:00/2h"),
        ("2025-11-01T10:00/2h", "2025-11-01T10:00/2h"),
        ("2025-11-01T10:00/2h", "2025-11-01T12:00+01:00/2h"),
    ],
)
def test_overlapping_or_reversed_spans_are_bad_usage(before: str, after: str) -> None:
    code, told = run("--before", before, "--after", after)

    assert code == 2
    assert "--after begins before --before ends" in told


@pytest.mark.parametrize("after", ["2999-11-01T10:00/2h", "9999-12-31T10:00/999999d"])
def test_a_span_in_the_future_is_bad_usage(after: str) -> None:
    code, told = run("--before", "2025-11-01T10:00/2h", "--after", after)

    assert code == 2
    assert "--after is not over yet" in told


@pytest.mark.parametrize(
    "begin", ["0001-01-01T00:00", "0001-01-01T00:00+14:00", "1969-12-31T23:59"]
)
def test_a_span_before_any_clock_of_a_server_is_bad_usage(begin: str) -> None:
    code, told = run("--before", f"{begin}/2h", "--after", "2025-11-01T10:00/2h")

    assert code == 2
    assert "is before 1970" in told


def test_adjacent_spans_are_accepted() -> None:
    code, told = run("--before", "2025-11-01T10:00/2h", "--after", "2025-11-01T12:00/2h")

    assert code != 2
    assert "--prometheus says where it is" in told
