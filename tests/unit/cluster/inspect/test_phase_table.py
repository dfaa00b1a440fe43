"""The table of `disagg-node phases`, from a page of ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from disagg_cluster.inspect.page_view import NotOurPageError, read_node_page
from disagg_cluster.inspect.phase_table import (
    NodeShares,
    NotOurViewError,
    PhaseRow,
    as_json,
    as_text,
    read_shares,
    rows_of,
    verdict_text,
    when_text,
)

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


def view(**uses: float) -> bytes:
    """A daemon's view of its one GPU."""
    value = {
        "made_at": "2026-11-23T10:00:00.000+00:00",
        "window_seconds": 60.2,
        "behind_seconds": 3.1,
        "gpus": [{"gpu": "GPU-a", "use_ratios": uses or None}],
    }
    return json.dumps(value).encode()


def test_shares_are_of_the_last_observed_time() -> None:
    shares = read_shares(view(prefill=0.1, decode=0.3, idle=0.4, unobserved=0.2))
    [row] = rows_of(read_node_page(page(10, 10, 100, 50).encode()), shares)

    assert (row.prefill_ratio, row.decode_ratio) == pytest.approx((0.125, 0.375))
    assert (row.engine, row.role, row.why, row.method) == ("e", "mixed", "vllm", "steps")
    assert as_text([row], wide=True).splitlines() == [
        "GPU            ENGINE  ROLE   WHY   CONFIDENCE  MEASURED BY  PREFILL  DECODE  STATE",
        "nvidia0 GPU-a  e       mixed  vllm  medium      steps        12%      37%     ready",
    ]
    assert when_text(shares) == "over 60 s, until 3 s ago"
    [value] = json.loads(as_json([row], shares))
    assert (value["made_at"], value["window_seconds"]) == ("2026-11-23T10:00:00.000+00:00", 60.2)


def test_a_worker_that_is_not_ready_has_the_web_pages_state() -> None:
    told = json.loads(view(idle=1.0))
    node = read_node_page(page(0, 0, 1, 1).encode())
    for state, shown in (("starting", "starting"), ("ready", "ready")):
        told["engines"] = [{"engine": "e", "worker": {"state": state}}, {"engine": "f"}]
        [row] = rows_of(node, read_shares(json.dumps(told).encode()))
        assert row.state == shown


def test_a_table_is_within_80_columns_however_long_the_names_are() -> None:
    row = PhaseRow(
        "MIG-GPU-4f2d7d3c-1/7/0", "", "llama-3-3-70b-instruct-decode-worker-7f9c-0", "decode"
    )
    long = replace(row, state="follower of 10.100.200.7:20000", busy_ratio=1.0)

    lines = as_text([long]).splitlines()

    assert max(map(len, lines)) <= 80
    assert "llama-3-3-…ker-7f9c-0" in lines[1]


def test_without_attributed_time_or_with_an_older_daemon_there_are_no_shares() -> None:
    assert read_shares(b'{"made_at": null}') == NodeShares()
    assert read_shares(view()).by_gpu == {"GPU-a": {}}
    assert when_text(NodeShares()) == "nothing was attributed yet"


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"made_at": 1}', b"[" * 100_000])
def test_an_answer_that_is_no_view_is_refused(text: bytes) -> None:
    with pytest.raises(NotOurViewError):
        read_shares(text)


def test_engines_without_device_or_registration_have_rows() -> None:
    lost = page(
        *(0, 0, 1, 1),
        other='disagg_engine_info{engine="f",role="unknown"} 1',
        registered='disagg_engine_registered{engine="e"} 0',
    )

    rows = {row.engine: row for row in rows_of(read_node_page(lost.encode()))}

    assert rows["f"].gpu == ""
    assert rows["f"].state == "no answer"
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
def test_a_follower_shows_its_leader_instead_of_its_health(leader: str, state: str) -> None:
    text = page(
        0, 0, 1, 1, follower=f'disagg_engine_follower_info{{engine="e",leader="{leader}"}} 1'
    )
    text = text.replace('disagg_engine_up{engine="e"} 1\n', "")

    [row] = rows_of(read_node_page(text.encode()))

    assert row.state == state


LATE = "both below 50 %, yet tokens are late"


def shares_with(*pools: dict[str, object]) -> NodeShares:
    made = {"made_at": "2026-11-23T10:00:00+00:00", "window_seconds": 60, "behind_seconds": 3}
    return read_shares(json.dumps({**made, "gpus": [], "pools": pools}).encode())


def test_each_model_has_its_verdict() -> None:
    llama = {"model_name": "llama", "namespace": "", "verdicts": [LATE]}
    qwen = {"model_name": "qwen", "namespace": "prod", "verdicts": ["mixed engines have room"]}
    unknown = {"model_name": "opt", "namespace": "", "verdicts": []}

    assert verdict_text(shares_with(llama, unknown)) == LATE
    assert verdict_text(shares_with(llama, qwen)) == (
        f"llama: {LATE}\nprod/qwen: mixed engines have room"
    )
    assert verdict_text(shares_with()) == ""


def test_a_verdict_says_how_full_the_pools_are_that_the_table_shows_as_busy() -> None:
    pools = [
        {"role": "prefill", "used_ratio": 0.214},
        {"role": "decode", "used_ratio": 0.02},
        {"role": "mixed", "used_ratio": None},
    ]
    llama = {"model_name": "llama", "namespace": "", "verdicts": [LATE], "pools": pools}

    shown = verdict_text(shares_with(llama))

    assert shown == f"{LATE}; capacity used: prefill 21%, decode 2%"


def test_each_row_has_its_models_verdict() -> None:
    llama = {"model_name": "llama", "namespace": "", "verdicts": [LATE]}
    rows = (PhaseRow("GPU-0", "0", "e", model_name="llama"), PhaseRow("GPU-1", "1"))

    told = json.loads(as_json(rows, shares_with(llama)))

    assert [row["verdicts"] for row in told] == [[LATE], []]


def test_texts_of_another_hosts_page_do_not_command_the_terminal() -> None:
    row = PhaseRow("GPU-a\x1b[2J", "nvidia\x07", engine="e\x1b]0;", role="mixed", state="\x9bready")
    shares = NodeShares(verdicts={("a\x1b", ""): ("one\x07",), ("b", ""): ("two",)})

    shown = (as_text([row]), as_text([row], wide=True), verdict_text(shares))
    assert all(text.replace("\n", "").isprintable() for text in shown)
