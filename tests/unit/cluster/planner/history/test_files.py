from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from disagg_cluster.planner.history.history_file import HistoryFileError
from disagg_cluster.planner.history.request_log import read_log_lines, read_request_log
from disagg_cluster.planner.history.trace_csv import read_rows, read_trace

_HEAD = "t_s,requests_per_s,prompt_tokens_per_s,output_tokens_per_s,prefill_share"
_NAN = float("nan")


def test_rows_of_a_trace_may_be_in_any_order() -> None:
    rows = [_HEAD, "20,3,30,300,0.1", "0,1,10,100,0.1", "10,2,20,,", "40,5,50,500,"]
    found = read_rows(rows, "trace.csv")

    assert found.prompt_tokens.step_seconds == 10.0
    np.testing.assert_array_equal(found.prompt_tokens.values, [10, 20, 30, _NAN, 50])
    np.testing.assert_array_equal(found.output_tokens.values, [100, _NAN, 300, _NAN, 500])
    assert found.requests is not None
    np.testing.assert_array_equal(found.requests.values, [1, 2, 3, _NAN, 5])


def test_a_trace_may_lack_the_column_of_requests() -> None:
    rows = ["t_s,prompt_tokens_per_s,output_tokens_per_s", "0,1,2", "60,1,2"]

    assert read_rows(rows, "trace.csv").requests is None


def test_a_column_of_requests_without_any_number_counts_none() -> None:
    """Then a plan says that requests are not known, not that the history is too short."""
    assert read_rows([_HEAD, "0,,1,2,", "60,,1,2,"], "trace.csv").requests is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"trace.csv:1: no column t_s, prompt_tokens_per_s, output_tokens_per_s; expected"),
        (["t_s,output_tokens_per_s"], r"trace.csv:1: no column prompt_tokens_per_s; expected"),
        (
            [_HEAD.replace(",", ";"), "0;1;1;1;1"],
            r"trace.csv:1: no column .*, found 't_s;requests_per_s;prompt_tokens_per_s;",
        ),
        (
            ["t_s,output_tokens_per_s,prompt_tokens_per_s,output_tokens_per_s", "0,1,1,1"],
            r"trace.csv:1: 2 columns output_tokens_per_s, expected one",
        ),
        (
            [_HEAD, *(f"{1_795_000_000_000 + 60_000 * step},1,1,1,1" for step in range(3))],
            r"trace.csv: times from 1.795e\+12 to 1.795e\+12 s are .*; t_s is seconds$",
        ),
        ([_HEAD, "0,1,1e300,1,1", "60,1,1,1,1"], r"_per_s is 1e300, expected 1e\+15 or less"),
        (
            [_HEAD, "0,0,10,1,1", "60,0,,1,1"],
            r"trace.csv: requests_per_s is 0 in every row although there are tokens; omit",
        ),
        ([_HEAD], r"trace.csv: no rows"),
        ([_HEAD, "0,1,1,1,1"], r"trace.csv: one time only"),
        ([_HEAD, "0,1,1,1,1", "60,1,1,1,1", "9e12,1,1,1,1"], r"trace.csv: .* is one time far"),
        ([_HEAD, '0,1,1,"' + "x" * 200_000], r"trace.csv: not valid CSV: field larger than"),
        (
            [_HEAD, "0,1,x,1,1", ",1,1,-1,1"],
            r"trace.csv:2: prompt_tokens_per_s is 'x', expected a number\n"
            r"trace.csv:3: t_s is '', expected seconds\n"
            r"trace.csv:3: output_tokens_per_s is -1, expected 0 or more",
        ),
        ([_HEAD, *["a,1,1,1,1"] * 13], r"(?s)trace.csv:11: .*and 3 more$"),
    ],
)
def test_all_problems_of_a_trace_have_their_lines(rows: list[str], message: str) -> None:
    with pytest.raises(HistoryFileError, match=message) as caught:
        read_rows(rows, "trace.csv")

    assert caught.value.exit_code == 2


@pytest.mark.parametrize("read", [read_trace, read_request_log])
def test_an_unreadable_file_is_reported_once_with_its_reason(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    absent, binary = tmp_path / "none", tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")

    for path, why in [
        (absent, "No such file or directory"),
        (tmp_path, "Is a directory"),
        (binary, "not text in UTF-8"),
    ]:
        with pytest.raises(HistoryFileError) as error:
            read(path)
        assert str(error.value) == f"{path}: cannot be read: {why}"


def request(milliseconds: float, prompt: int = 600, output: int = 60) -> str:
    row = {"timestamp": milliseconds, "input_length": prompt, "output_length": output}
    return json.dumps({**row, "hash_ids": [1, 2]})


def test_a_step_without_requests_has_no_load(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join([request(130_000), request(60_000), request(61_000), ""]))
    found = read_request_log(log)

    assert found.prompt_tokens.start_seconds == 60.0
    np.testing.assert_array_equal(found.prompt_tokens.values, [20.0, 10.0])
    np.testing.assert_array_equal(found.output_tokens.values, [2.0, 1.0])
    assert found.requests is not None
    np.testing.assert_array_equal(found.requests.values, [2 / 60, 1 / 60])

    log.write_text("\n".join([request(0), request(185_000)]))
    np.testing.assert_array_equal(read_request_log(log).output_tokens.values, [1.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("begins", "ends", "steps"),
    [(0, 300, (0, 5)), (30, 300, (1, 5)), (0, 270, (0, 4)), (30, 270, (1, 4)), (30, 50, (0, 1))],
)
def test_a_log_tells_nothing_of_steps_in_which_it_begins_or_ends(
    begins: int, ends: int, steps: tuple[int, int]
) -> None:
    """Its last half minute, taken for a minute, would be half of the load."""
    every_second = [request(1000 * second) for second in range(begins, ends)]

    found = read_log_lines(every_second, "log", 60.0).requests

    assert found is not None
    assert (found.start_seconds, found.end_seconds) == (60 * steps[0], 60 * steps[1])
    if ends - begins > 60:
        assert set(found.values) == {1.0}


def test_all_problems_of_a_log_are_reported_with_their_lines() -> None:
    lines = [request(0), "{", "[1]", '{"timestamp": 1, "input_length": true}', request(1, -5)]
    with pytest.raises(HistoryFileError) as caught:
        read_log_lines(lines, "log", 60.0)

    assert str(caught.value).splitlines() == [
        "log:2: expected a JSON object, found '{'",
        "log:3: expected a JSON object, found '[1]'",
        "log:4: input_length is True, output_length is None; expected numbers, 0 or more",
        "log:5: input_length is -5; expected numbers, 0 or more",
    ]


def log_line(timestamp: str) -> str:
    return f'{{"timestamp": {timestamp}, "input_length": 1, "output_length": 1}}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[" * 100_000, "log:1: expected a JSON object"),
        (log_line("9" * 400), "log:1: timestamp is 9"),
        (log_line("9" * 9000), "log:1: "),
        (log_line("1e400"), "timestamp is inf"),
        (log_line("NaN"), "timestamp is nan"),
        (log_line(f'"{"x" * 999}"'), "x…; expected"),
    ],
)
def test_malformed_lines_of_a_log_are_reported(line: str, message: str) -> None:
    with pytest.raises(HistoryFileError, match=re.escape(message)) as caught:
        read_log_lines([line], "log", 60.0)

    assert len(str(caught.value)) < 200


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """As written by spreadsheets."""
    trace, log = tmp_path / "trace.csv", tmp_path / "log.jsonl"
    trace.write_text("\n".join([_HEAD, "0,1,10,100,1", "60,1,10,100,1"]), encoding="utf-8-sig")
    log.write_text(request(0), encoding="utf-8-sig")

    assert read_trace(trace).prompt_tokens.known == 2
    assert read_request_log(log).prompt_tokens.known == 1


def test_a_log_in_seconds_is_refused_and_one_of_relative_times_is_not() -> None:
    in_seconds = [request(1_795_000_000 + minute * 60) for minute in range(24 * 60)]
    late = [request(1_795_000_000 + minute * 60_000) for minute in range(24 * 60)]

    with pytest.raises(
        HistoryFileError, match=r"log: timestamps from 1795000000 to .* are seconds"
    ):
        read_log_lines(in_seconds, "log", 60.0)
    assert read_log_lines(late, "log", 60.0).prompt_tokens.known == 24 * 60


def test_a_log_with_too_long_a_span_is_rejected() -> None:
    with pytest.raises(HistoryFileError, match="Timestamps are milliseconds"):
        read_log_lines([request(0), request(1e15)], "log", 60.0)
    with pytest.raises(HistoryFileError, match=r"log: times .*; timestamps are milliseconds"):
        read_log_lines([request(1.795e15)], "log", 60.0)
    with pytest.raises(HistoryFileError, match="log: no requests"):
        read_log_lines(["\n"], "log", 60.0)
