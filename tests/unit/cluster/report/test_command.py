"""What `disagg-node report` says when it cannot report."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main


def said(*arguments: str) -> tuple[int, str]:
    """Exit code, and the last line on standard error."""
    result = CliRunner().invoke(main, ["report", *arguments], prog_name="disagg-node")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stderr.splitlines()[-1]


def test_where_no_prometheus_answers_the_option_that_names_it_is_said() -> None:
    assert said("--prometheus", "http://127.0.0.1:1") == (
        1,
        "disagg-node: no answer from http://127.0.0.1:1: Connection refused; "
        "--prometheus says where it is",
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--prometheus", "prometheus:9090"], "'prometheus:9090' is no address: give one such as"),
        (["-o", "report.pdf"], "the report is a .html or a .md file"),
        (["-o", str(Path("no") / "report.md")], "no is no folder"),
        (["--header", "name"], "'name' is no header: give NAME:VALUE"),
        (["--since", "7x"], "'7x' is no span of time"),
    ],
)
def test_bad_usage_is_told_before_anything_is_asked(arguments: list[str], error: str) -> None:
    code, line = said(*arguments)

    assert code == 2
    assert error in line
