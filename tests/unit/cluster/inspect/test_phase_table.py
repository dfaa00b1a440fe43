"""The table of `disagg-node phases`, from a page of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disagg_cluster.inspect.page_view import NotOurPageError, read_node_page
from disagg_cluster.inspect.phase_table import as_json, as_text, moved, rows_of

GOLDEN = (Path(__file__).parents[3] / "data" / "golden_page.prom").read_text(encoding="utf-8")
HEAD = 'disagg_build_info{version="1"} 1\n'


def page(prefill: float, decode: float, idle: float, watermark: float, **more: str) -> str:
    gpu = 'gpu="GPU-a"'
    name = "disagg_gpu_phase_seconds_total"
    rows = [("prefill", prefill), ("decode", decode), ("idle", idle)]
    lines = [f'{name}{{{gpu},phase="{use}",role="mixed"}} {value}' for use, value in rows]
    lines += [f"disagg_gpu_watermark_timestamp_seconds{{{gpu}}} {watermark}"]
    lines += [f'disagg_gpu_info{{{gpu},device="nvidia0",gpu_name="H100"}} 1']
    lines += ['disagg_engine_info{engine="e",role="mixed",kind="vllm"} 1']
    how = 'role="mixed",source="vllm",confidence="medium"'
    lines += [f'disagg_gpu_assignment_info{{{gpu},engine="e",{how}}} 1']
    lines += [
        'disagg_attribution_info{engine="e",method="steps"} 1',
        'disagg_engine_up{engine="e"} 1',
    ]
    return HEAD + "\n".join([*lines, *more.values()]) + "\n"


def test_shares_are_those_of_the_time_between_two_pages() -> None:
    before = read_node_page(page(10, 10, 100, 50).encode())
    after = read_node_page(page(11, 13, 104, 58).encode())

    [row] = rows_of(after, before)

    assert (row.prefill_ratio, row.decode_ratio) == (0.125, 0.375)
    assert (row.engine, row.role, row.why, row.method) == ("e", "mixed", "vllm", "steps")
    assert as_text([row]).splitlines() == [
        "GPU            ENGINE  ROLE   WHY   CONFIDENCE  MEASURED BY  PREFILL  DECODE  STATE",
        "nvidia0 GPU-a  e       mixed  vllm  medium      steps        12%      38%     up",
    ]


def test_counters_that_fell_say_nothing() -> None:
    before = read_node_page(page(10, 10, 100, 50).encode())
    after = read_node_page(page(0, 0, 1, 60).encode())

    [row] = rows_of(after, before)

    assert row.prefill_ratio is None


def test_a_page_has_moved_when_all_its_books_have() -> None:
    before = read_node_page(page(10, 10, 100, 50).encode())

    assert not moved(before, read_node_page(page(10, 10, 100, 50).encode()))
    assert moved(before, read_node_page(page(10, 10, 105, 55).encode()))


def test_an_engine_without_a_device_and_one_that_lost_its_registration_are_rows_too() -> None:
    lost = page(
        *(0, 0, 1, 1),
        other='disagg_engine_info{engine="f",role="unknown"} 1',
        registered='disagg_engine_registered{engine="e"} 0',
    )

    rows = {row.engine: row for row in rows_of(read_node_page(lost.encode()))}

    assert rows["f"].gpu == ""
    assert rows["f"].state == "does not answer"
    assert rows["e"].state == "not registered"


def test_the_golden_page_is_read_whole() -> None:
    node = read_node_page(GOLDEN.encode())

    on_devices, nowhere = {"prefill-0", "decode-0"}, {"decode-0-node-1"}
    assert {engine.engine for engine in node.engines} == on_devices | nowhere
    assert len(json.loads(as_json(rows_of(node)))) == len(node.devices) + len(nowhere)


@pytest.mark.parametrize("text", [b"", b"<html>", b"\xff\xfe", b"up 1\n", b'a{b="c 1\n'])
def test_other_pages_are_refused(text: bytes) -> None:
    with pytest.raises(NotOurPageError):
        read_node_page(text)


@pytest.mark.parametrize(("leader", "state"), [("a:1", "follower of a:1"), ("", "follower")])
def test_a_follower_says_whom_it_follows_instead_of_whether_it_answers(
    leader: str, state: str
) -> None:
    text = page(
        0, 0, 1, 1, follower=f'disagg_engine_follower_info{{engine="e",leader="{leader}"}} 1'
    )
    text = text.replace('disagg_engine_up{engine="e"} 1\n', "")

    [row] = rows_of(read_node_page(text.encode()))

    assert row.state == state
