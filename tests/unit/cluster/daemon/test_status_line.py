from __future__ import annotations

import json
from dataclasses import dataclass, replace

from disagg_cluster.daemon.status_line import LinePrinter, line
from disagg_exporter.model import BusyGpus, Device, Phase, Role, Snapshot, WorkerStatus


def _snapshot(
    prefill: float, decode: float, *, window: float = 1.0, device: str = "sim0"
) -> Snapshot:
    return Snapshot(
        taken_ns=0,
        wall_offset_seconds=0.0,
        fresh_until_ns=0,
        devices=(Device("g", 0, "X", device), Device("h", 1, "X", device)),
        busy=(
            BusyGpus(Role.PREFILL, Phase.PREFILL, "m", "", "X", prefill),
            BusyGpus(Role.DECODE, Phase.DECODE, "m", "", "X", decode),
        ),
        busy_window_seconds=window,
        workers=(WorkerStatus("a", "ready", 0, 1.0), WorkerStatus("b", "starting", 0, 1.0)),
        simulated=True,
    )


def test_the_line_shows_ratio_share_and_busy_gpus() -> None:
    shown = line(_snapshot(0.75, 0.25), "12:00:00", requests_per_second=3.2, failed=2)

    assert shown.text() == (
        "12:00:00  P:D 3.00  prefill share 0.75  busy 0.8P + 0.2D of 2 GPUs"
        "  ready 1 of 2 workers  3 req/s  2 failed  SIMULATED"
    )


def test_the_line_shows_the_number_of_paused_workers() -> None:
    snapshot = _snapshot(0.5, 0.5)
    paused = replace(snapshot.workers[0], paused=True)

    shown = line(replace(snapshot, workers=(paused, *snapshot.workers[1:])), "")
    assert "ready 1 of 2 workers  1 paused" in shown.text()
    assert json.loads(shown.json())["workers_paused"] == 1


def test_a_ratio_without_decode_has_no_value() -> None:
    """A8: P / D is absent when D is 0."""
    shown = line(_snapshot(1.0, 0.0), "12:00:00")

    assert shown.prefill_decode_ratio is None
    assert "P:D -" in shown.text()
    assert shown.prefill_share_ratio == 1.0


def test_a_share_and_a_ratio_of_almost_nothing_have_no_value() -> None:
    """A8: absent below one busy GPU-second in the window; a longer window may hold one."""
    almost_nothing = line(_snapshot(0.3, 0.3), "")

    assert almost_nothing.prefill_share_ratio is None
    assert almost_nothing.prefill_decode_ratio is None
    assert line(_snapshot(0.3, 0.3, window=2.0), "").prefill_share_ratio == 0.5


def test_pseudo_devices_are_not_called_gpus() -> None:
    assert "of 2 CPU engines" in line(_snapshot(0.5, 0.5, device="cpu"), "").text()


@dataclass(frozen=True)
class _Counts:
    sent: int
    failed: int


def test_the_printer_counts_requests_from_line_to_line() -> None:
    said: list[str] = []
    counts = iter([_Counts(10, 0), _Counts(16, 1)])
    clock = iter([0.0, 2.0])
    printer = LinePrinter(
        said.append, as_json=True, requests=lambda: next(counts), clock=lambda: next(clock)
    )

    printer.snapshot(_snapshot(0.5, 0.5))
    printer.snapshot(_snapshot(0.5, 0.5))

    first, second = map(json.loads, said)
    assert first["requests_per_second"] is None
    assert second["requests_per_second"] == 3.0
    assert second["failed"] == 1
