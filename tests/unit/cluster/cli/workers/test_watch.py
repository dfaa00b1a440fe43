from __future__ import annotations

from disagg_cluster.cli.workers.watch import change_text
from disagg_cluster.control.messages import ControlReply, ReplyOutcome
from disagg_cluster.control.views import DaemonView, MoveView, WorkerView
from disagg_cluster.lifecycle.state import WorkerState

DAEMON = DaemonView("0.1.0", 7, "gpu-7", "/run/disagg-node", 3725.0)


def line(outcome: ReplyOutcome = ReplyOutcome.WORKER, **said: object) -> str:
    return change_text(ControlReply("r", outcome, **said))  # type: ignore[arg-type] # by name


def test_a_worker_is_a_line_with_its_state_its_marks_and_its_reason() -> None:
    worker = WorkerView("d", WorkerState.DRAINING, role="decode", restarting=True, reason="asked")
    paused = WorkerView("d", WorkerState.READY, paused_seconds=1.0, drained=True)

    assert line(worker=worker) == "d (decode): restarting: asked"
    assert line(worker=paused) == "d: ready, paused, gets no new requests"
    assert line(ReplyOutcome.GONE, worker=paused) == "d: is no longer launched here"


def test_a_move_and_the_end_are_told_and_what_is_as_before_is_not() -> None:
    move = MoveView("m", "d", "decode", "prefill", "draining")

    assert line(ReplyOutcome.MOVE, text="d: draining: waits", move=move) == "d: draining: waits"
    assert line(ReplyOutcome.CURRENT, daemon=DAEMON) == ""
    assert line(ReplyOutcome.DONE, text="the daemon has ended") == "the daemon has ended"
