from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pytest

from disagg_cluster.cli.workers.watch import change_text, watch_status
from disagg_cluster.control.messages import ControlReply, ControlRequest, ReplyOutcome
from disagg_cluster.control.views import DaemonView, MoveView, WorkerView
from disagg_cluster.lifecycle.state import WorkerState

DAEMON = DaemonView("0.1.0", 7, "gpu-7", "/run/disagg-node", 3725.0)


def line(outcome: ReplyOutcome = ReplyOutcome.WORKER, **said: object) -> str:
    return change_text(ControlReply("r", outcome, **said))  # type: ignore[arg-type] # by name


def test_a_worker_line_has_its_state_its_flags_and_its_reason() -> None:
    worker = WorkerView("d", WorkerState.DRAINING, role="decode", restarting=True, reason="asked")
    paused = WorkerView("d", WorkerState.READY, paused_seconds=1.0, drained=True)

    assert line(worker=worker) == "d (decode): restarting: asked"
    assert line(worker=paused) == "d: ready, paused, gets no new requests"
    assert line(ReplyOutcome.GONE, worker=paused) == "d: is no longer launched here"


def test_a_worker_is_drained_only_once_the_router_sends_it_nothing() -> None:
    idle = WorkerView("d", WorkerState.READY, drained=True, idle=True)

    assert line(worker=idle) == "d: ready, drained"
    assert line(worker=replace(idle, routed_as="decode")) == (
        "d: ready, the router has not let it go"
    )


def test_a_move_and_the_end_are_printed_and_a_keepalive_is_not() -> None:
    move = MoveView("m", "d", "decode", "prefill", "draining")

    assert line(ReplyOutcome.MOVE, text="d: draining: waits", move=move) == "d: draining: waits"
    assert line(ReplyOutcome.CURRENT, daemon=DAEMON) == ""
    assert line(ReplyOutcome.DONE, text="the daemon has ended") == "the daemon has ended"


class _Ended:
    """A daemon that is watched and has just ended."""

    def ask(
        self, request: ControlRequest, _patience_seconds: float | None = None, /
    ) -> Iterator[ControlReply]:
        yield ControlReply(request.id, ReplyOutcome.DONE, "the daemon has ended")


def test_each_json_line_has_the_time_it_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    watch_status(_Ended(), as_json=True)

    (told,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert told["text"] == "the daemon has ended"
    assert datetime.fromisoformat(told["made_at"]).tzinfo is not None
