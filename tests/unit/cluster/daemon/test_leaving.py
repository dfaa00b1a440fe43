from __future__ import annotations

from dataclasses import replace

from disagg_cluster.config import Attach
from disagg_cluster.daemon.leaving import (
    WaitReports,
    ending_text,
    nothing_found_text,
    summary_text,
)
from disagg_exporter.model import Cell, Role, Snapshot, Use, WorkerStatus
from support.snapshots import golden_snapshot, slice_ns

GOLDEN = golden_snapshot()


def starting(since: float, state: str = "starting") -> Snapshot:
    worker = WorkerStatus(
        "w",
        state,
        0,
        since,
        since_timestamp_seconds=since,
        deadline_timestamp_seconds=since + 600.0,
        last_lines=("Loading weights: 45 %",),
    )
    return replace(GOLDEN, workers=(worker,))


def test_a_wait_is_reported_after_two_seconds_and_every_ten() -> None:
    waits = WaitReports()
    now = {"w": "starting"}
    told = [[*waits.lines(starting(100.0), at, now)] for at in (101.0, 102.0, 103.0, 111.9, 112.0)]

    assert [len(lines) for lines in told] == [0, 1, 0, 0, 1]
    assert told[4] == ["w: starting for 12 s, given up in 10 min: Loading weights: 45 %"]
    assert [*waits.lines(starting(112.0, "draining"), 114.0, {"w": "draining"})] != []
    assert [*waits.lines(starting(115.0, "ready"), 200.0, {"w": "ready"})] == []


def test_a_wait_that_ended_since_the_last_snapshot_is_not_reported() -> None:
    assert [*WaitReports().lines(starting(100.0), 102.0, {"w": "ready"})] == []


def test_the_shutdown_message_names_what_is_waited_for() -> None:
    failed = WorkerStatus("decode-9", "failed", 0, None)
    ready = replace(GOLDEN, workers=(WorkerStatus("prefill-0", "ready", 0, 1.0), failed))

    assert ending_text(ready, 90.0, leaves=False) == (
        "ending: 1 worker may finish its requests (3 running requests) for up to 1m 30s, "
        "then it ends; a second Ctrl-C waits for none"
    )
    assert "1 worker goes on: the next daemon adopts it" in ending_text(ready, 90.0, leaves=True)
    assert "no worker of ours runs" in ending_text(None, 0.0, leaves=False)


def test_the_summary_counts_only_what_was_done_in_this_run() -> None:
    [account] = GOLDEN.accounts[:1]
    cells = {Cell(Role.PREFILL, Use.PREFILL): 10.0, Cell(Role.PREFILL, Use.DECODE): 40.0}
    more = {Cell(Role.PREFILL, Use.PREFILL): 14.0, Cell(Role.PREFILL, Use.DECODE): 48.0}
    first = Snapshot(0, 0.0, 0, accounts=(replace(account, slice_ns=slice_ns(cells)),))
    last = Snapshot(61 * 10**9, 0.0, 0, accounts=(replace(account, slice_ns=slice_ns(more)),))

    text = summary_text(first, last)

    assert text.startswith("in 1m 1s: prefill 4.0 + decode 8.0 of 12.0 GPU-seconds, P:D 0.50")
    assert "P:D" not in summary_text(first, first)


def test_the_summary_of_a_short_run_names_seconds_not_yet_accounted() -> None:
    [account], [device] = GOLDEN.accounts[:1], GOLDEN.devices[:1]
    cells = {Cell(Role.PREFILL, Use.PREFILL): 4.0}
    first = Snapshot(0, 0.0, 0, devices=(device,))
    last = replace(first, accounts=(replace(account, slice_ns=slice_ns(cells)),))

    short = summary_text(first, replace(last, taken_ns=10 * 10**9))
    booked = summary_text(first, replace(last, taken_ns=4_400_000_000))

    assert "of 4.0 GPU-seconds (the last 6 s of each GPU are not in it: " in short
    assert "not in it" not in booked


def test_without_engines_a_message_names_what_was_scanned_for() -> None:
    text = nothing_found_text(Attach())

    assert "this machine's processes, for vLLM, SGLang, TensorRT-LLM and Dynamo" in text
    assert "no `attach:` to look for any" in nothing_found_text(None)
