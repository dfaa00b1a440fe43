"""A request by hand is decided by how the node stands: done, or refused with the way out."""

from dataclasses import replace

from disagg_cluster.control.decisions import ControlRefusal, Orders, decide
from disagg_cluster.control.messages import PauseWorkers, RestartWorker, ResumeWorkers
from disagg_cluster.control.views import DaemonView, NodeOverview, WorkerView
from disagg_cluster.lifecycle.state import WorkerState

DAEMON = DaemonView("1.0", 1, "node", "/run/x", 1.0)
READY = WorkerView("prefill-0", WorkerState.READY, 1, pid=7)
OTHER = WorkerView("decode-0", WorkerState.READY, 1, pid=8)
NODE = NodeOverview(DAEMON, (READY, OTHER))
PAUSED = replace(READY, paused_seconds=3.0)
STOPPING = replace(READY, state=WorkerState.DRAINING)


def node(*workers: WorkerView) -> NodeOverview:
    return NodeOverview(DAEMON, workers)


def orders(decided: Orders | ControlRefusal) -> tuple[str, ...]:
    assert isinstance(decided, Orders)
    return decided.workers


def refusal(decided: Orders | ControlRefusal) -> str:
    assert isinstance(decided, ControlRefusal)
    return f"{decided.why}: {decided.way_out}"


def test_a_worker_or_all_of_them_are_paused_and_resumed() -> None:
    assert orders(decide(PauseWorkers("decode-0"), NODE)) == ("decode-0",)
    assert orders(decide(PauseWorkers(), NODE)) == ("prefill-0", "decode-0")
    assert orders(decide(PauseWorkers(), node(PAUSED, OTHER))) == ("decode-0",)
    assert orders(decide(ResumeWorkers(), node(PAUSED, OTHER))) == ("prefill-0",)


def test_a_change_already_in_effect_is_done_without_an_order() -> None:
    again = decide(PauseWorkers("prefill-0"), node(PAUSED, OTHER))
    assert orders(again) == ()
    assert isinstance(again, Orders)
    assert again.text == "prefill-0 is already paused"
    assert orders(decide(ResumeWorkers(), NODE)) == ()


def test_a_resume_names_the_workers_it_starts() -> None:
    died = replace(PAUSED, state=WorkerState.BACKOFF, pid=None)

    resumed = decide(ResumeWorkers(), node(died, replace(OTHER, paused_seconds=1.0)))
    assert isinstance(resumed, Orders)
    assert resumed.text.endswith("started, as it is not running: prefill-0")


def test_an_unknown_worker_is_refused_with_the_names_of_the_workers() -> None:
    assert refusal(decide(RestartWorker("prefil-0"), NODE)) == (
        "no worker 'prefil-0': did you mean prefill-0? the workers are prefill-0, decode-0"
    )
    assert "only ever observed" in refusal(decide(PauseWorkers("x"), node()))
    assert "launches no workers" in refusal(decide(PauseWorkers(), node()))


def test_a_paused_or_stopping_worker_is_not_restarted() -> None:
    paused = refusal(decide(RestartWorker("prefill-0"), node(PAUSED)))
    assert paused == "prefill-0 is paused: disagg-node resume prefill-0, then restart it"
    assert "being stopped" in refusal(decide(RestartWorker("prefill-0"), node(STOPPING)))
    assert "being stopped" in refusal(decide(PauseWorkers("prefill-0"), node(STOPPING)))
    assert orders(decide(PauseWorkers(), node(STOPPING, OTHER))) == ("decode-0",)


def test_a_restarting_worker_may_be_restarted_again_or_paused() -> None:
    restarting = replace(STOPPING, restarting=True)

    assert orders(decide(RestartWorker("prefill-0", drain=False), node(restarting))) == (
        "prefill-0",
    )
    assert orders(decide(PauseWorkers("prefill-0"), node(restarting))) == ("prefill-0",)


def test_a_stopping_daemon_refuses_every_change() -> None:
    ending = replace(NODE, daemon=replace(DAEMON, stopping=True))

    for verb in (PauseWorkers(), ResumeWorkers(), RestartWorker("decode-0")):
        assert "the daemon is stopping" in refusal(decide(verb, ending))
