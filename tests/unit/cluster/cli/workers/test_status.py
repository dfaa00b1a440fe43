from __future__ import annotations

from dataclasses import asdict, replace

import click

from disagg_cluster.cli.workers.status import status_text, status_value
from disagg_cluster.control.views import DaemonView, MoveView, WorkerView
from disagg_cluster.lifecycle.state import WorkerState
from support import daemon_answers

DAEMON = DaemonView("0.1.0", 7, "gpu-7", "/run/disagg-node", 3725.0)
READY = replace(daemon_answers.READY, log_path="/run/disagg-node/logs/prefill-0.log")
STARTING = replace(daemon_answers.STARTING, log_path="/run/disagg-node/logs/decode-0.log")

TEXT = """\
disagg-node 0.1.0 (pid 7) on gpu-7, up 1h 2m, run folder /run/disagg-node
WORKER     ROLE     STATE     FOR     UNTIL      RESTARTS  PID  GPUS    PORT
prefill-0  prefill  ready     1m 30s  -          0         11   GPU-a   8001
decode-0   decode   starting  40s     in 9m 20s  2         12   2 GPUs  8002
decode-0: start 3
decode-0: log /run/disagg-node/logs/decode-0.log
decode-0: printed last: Loading weights: 40 %"""


def test_workers_are_shown_with_state_deadline_and_notes() -> None:
    shown = status_text(DAEMON, [READY, STARTING], lambda _log: "Loading weights: 40 %")

    assert click.unstyle(shown) == TEXT
    assert click.style("starting", fg="yellow") in shown
    assert max(map(len, TEXT.splitlines()[1:4])) <= 80


def test_a_number_of_gpus_is_no_index() -> None:
    shown = status_text(DAEMON, [STARTING], lambda _log: "")

    assert " 2 GPUs " in shown


def test_a_paused_and_a_failed_worker_have_notes() -> None:
    paused = WorkerView("w", WorkerState.READY, paused_seconds=61.0)
    failed = WorkerView("x", WorkerState.FAILED, reason="gave up", log_path="/l")

    text = status_text(DAEMON, [paused, failed], lambda _log: "")

    assert "w: paused for 1m 1s: only observed, until `disagg-node resume`" in text
    assert "x: gave up\nx: log /l" in text


def test_a_drained_worker_and_the_move_under_way_are_named() -> None:
    """Both look ready in the table, and get no requests."""
    idle = WorkerView("w", WorkerState.READY, drained=True, idle=True)
    busy = WorkerView("x", WorkerState.READY, drained=True, remaining="2 requests still run")
    move = MoveView("m1", "y", "decode", "prefill", "draining")

    def notes(move: MoveView) -> list[str]:
        return status_text(DAEMON, [idle, busy], lambda _log: "", move).splitlines()[4:]

    assert notes(move) == [
        "y: is being reassigned from decode to prefill (draining): disagg-node explain y",
        "w: drained by hand: no new requests until `disagg-node resume w`",
        "x: drained by hand: 2 requests still run, no new requests until `disagg-node resume x`",
    ]
    back = replace(move, step="leaving", undone=True, why="unproven: nothing")
    assert notes(back)[0] == (
        "y: goes back to decode, as unproven: nothing (leaving): disagg-node explain y"
    )
    assert len(notes(replace(move, step="done"))) == len(notes(move)) - 1
    value = status_value(DAEMON, [idle], 0.0, move)
    assert value["move"] == asdict(move)


def test_a_ready_worker_that_does_not_answer_is_unresponsive() -> None:
    silent = replace(READY, unanswered="/health: no answer in time")

    shown = status_text(DAEMON, [silent], lambda _log: "step 7")

    assert click.style("unresponsive", fg="red") in shown
    assert click.unstyle(shown).splitlines()[3:] == [
        "prefill-0: its last health probe: /health: no answer in time",
        "prefill-0: log /run/disagg-node/logs/prefill-0.log",
        "prefill-0: printed last: step 7",
    ]


def test_the_last_line_of_a_log_does_not_command_the_terminal() -> None:
    shown = status_text(DAEMON, [STARTING], lambda _log: "Loading weights: 40 %\x1b[A")

    assert shown.endswith(r"printed last: Loading weights: 40 %\x1b[A")


def test_json_times_have_a_date_and_a_zone() -> None:
    value = status_value(DAEMON, [STARTING], 1_800_000_000.0)

    [worker] = value["workers"]  # type: ignore[misc] # a list, as the test sees
    assert worker["log_path"] == "/run/disagg-node/logs/decode-0.log"
    assert [len(worker[key]) for key in ("since", "until")] == [25, 25]
    assert worker["since"][-6] in "+-"


def test_a_node_file_changed_since_it_was_read_is_shown_last() -> None:
    daemon = replace(DAEMON, node_file="/etc/node.yaml was written since it was taken in")

    told = status_text(daemon, [READY], lambda _: "").splitlines()

    assert told[-1] == "node file: /etc/node.yaml was written since it was taken in"


def test_a_journal_that_cannot_be_written_is_shown() -> None:
    full = "cannot write the journal /run/x/journal.json: No space left on device"

    for workers in ([READY], []):
        told = status_text(replace(DAEMON, unwritten=full), workers, lambda _: "")
        assert told.splitlines()[-1] == full


def test_deferred_node_file_changes_are_listed_up_to_a_limit() -> None:
    waiting = tuple(f"decode-{number}: port" for number in range(10))

    *_, first, last = status_text(replace(DAEMON, waiting=waiting), [READY], lambda _: "").split(
        "\n"
    )
    nobody = status_text(replace(DAEMON, waiting=("listen.metrics",)), [], lambda _: "")

    assert first == "node file: decode-7: port (waits for the next daemon)"
    assert last == "node file: 2 more wait; disagg-node reload --dry-run shows all"
    assert nobody.endswith("\nnode file: listen.metrics (waits for the next daemon)")
