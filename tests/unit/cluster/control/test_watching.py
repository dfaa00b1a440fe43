"""What those who watch are told: everything once, then each change, and no more than they read."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.control.messages import ControlReply, ControlRequest, ReplyOutcome, WatchStatus
from disagg_cluster.control.views import DaemonView, NodeOverview, WorkerView
from disagg_cluster.control.watching import Watching, differences
from disagg_cluster.lifecycle.reassignment.progress import MoveStep, Patience, Reassignment
from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.model import Role

LOG = logging.getLogger("test.watching")
DAEMON = DaemonView("1.0", 1, "node", "/run/x", 1.0)
READY = WorkerView("w", WorkerState.READY, 1, pid=7)
OTHER = WorkerView("x", WorkerState.READY, 1, pid=8)
NODE = NodeOverview(DAEMON, (READY, OTHER))
MOVE = Reassignment("m1", "w", Role.PREFILL, Role.DECODE, 0, 0, Patience())


def told(before: NodeOverview | None, now: NodeOverview) -> list[str]:
    return list(differences(before, now))


def test_a_new_watch_receives_every_worker_the_move_and_the_daemon() -> None:
    found = differences(None, replace(NODE, move=MOVE))

    assert list(found) == ["worker w", "worker x", "move", "daemon"]
    assert found["move"].move is not None
    assert found["move"].move.to_role == "decode"
    assert [reply.outcome.final for reply in found.values()] == [False] * 4


def test_elapsed_time_alone_is_not_a_change_and_any_other_field_is() -> None:
    later = replace(READY, state_seconds=9.0, deadline_seconds=3.0)
    assert told(NODE, replace(NODE, workers=(later, OTHER))) == []

    for changed in (
        replace(READY, state=WorkerState.DRAINING),
        replace(READY, paused_seconds=0.0),
        replace(READY, pid=9),
        replace(READY, idle=True),
        replace(READY, reason="says more"),
    ):
        assert told(NODE, replace(NODE, workers=(changed, OTHER))) == ["worker w"]
    busy, less = (replace(READY, remaining=f"{n} requests still run") for n in (3, 2))
    assert told(replace(NODE, workers=(busy,)), replace(NODE, workers=(less,))) == []
    paused = replace(READY, paused_seconds=1.0)
    before = replace(NODE, workers=(paused,))
    assert told(before, replace(NODE, workers=(replace(paused, paused_seconds=2.0),))) == []


def test_each_step_of_a_move_and_a_stopping_daemon_are_changes() -> None:
    moving = replace(NODE, move=MOVE)
    assert told(NODE, moving) == ["move"]
    assert told(moving, replace(NODE, move=MOVE.into(MoveStep.DRAINING, 5))) == ["move"]
    stopping = replace(NODE, daemon=replace(DAEMON, stopping=True))
    assert told(NODE, stopping) == ["daemon"]


def test_a_removed_worker_is_reported_once_as_gone() -> None:
    left = replace(NODE, workers=(OTHER,))

    [gone] = differences(NODE, left).values()

    assert (gone.outcome, gone.outcome.final) == (ReplyOutcome.GONE, False)
    assert gone.worker is not None
    assert gone.worker.worker == "w"
    assert told(left, left) == []
    assert told(left, NODE) == ["worker w"]


class Stage:
    """A node that a test changes, and those who watch it."""

    def __init__(self, quiet_seconds: float = 60.0) -> None:
        self.node = NODE
        self.watching = Watching(lambda: self.node, LOG, quiet_seconds)

    def watch(self, deadline_seconds: float | None = None) -> AsyncIterator[ControlReply]:
        request = ControlRequest("r1", WatchStatus(), deadline_seconds=deadline_seconds)
        return self.watching.replies(request)

    def show(self, worker: WorkerView) -> None:
        others = self._others(worker.worker)
        self.node = replace(self.node, workers=(worker, *others))
        self.watching.changed()

    def let_go(self, name: str) -> None:
        self.node = replace(self.node, workers=self._others(name))
        self.watching.changed()

    def _others(self, name: str) -> tuple[WorkerView, ...]:
        return tuple(each for each in self.node.workers if each.worker != name)


async def until_current(replies: AsyncIterator[ControlReply]) -> list[ControlReply]:
    found = []
    async for reply in replies:
        found.append(reply)
        if reply.outcome is ReplyOutcome.CURRENT:
            return found
    raise AssertionError("it ended")


def test_two_watches_both_receive_each_change_and_the_end() -> None:
    stage = Stage()

    async def story() -> None:
        first, second = stage.watch(), stage.watch()
        for replies in (first, second):
            assert len(await until_current(replies)) == 3
        stage.show(replace(READY, state=WorkerState.DRAINING))
        for replies in (first, second):
            reply = await anext(replies)
            assert reply.id == "r1"
            assert reply.worker is not None
            assert reply.worker.state is WorkerState.DRAINING
        stage.watching.end()
        for replies in (first, second):
            assert [reply.outcome async for reply in replies][-1] is ReplyOutcome.DONE
        assert stage.watching.count == 0
        await stage.watching.close()

    asyncio.run(story())


def test_a_slow_watch_receives_only_the_latest_state() -> None:
    stage = Stage()

    async def story() -> None:
        slow, quick = stage.watch(), stage.watch()
        for replies in (slow, quick):
            await until_current(replies)
        for state in (WorkerState.DRAINING, WorkerState.STOPPED, WorkerState.STARTING):
            stage.show(replace(READY, state=state))
            reply = await anext(quick)
            assert reply.worker is not None
            assert reply.worker.state is state
        reply = await anext(slow)
        assert reply.worker is not None
        assert reply.worker.state is WorkerState.STARTING
        stage.watching.end()
        assert [each.outcome async for each in slow][-1] is ReplyOutcome.DONE
        await stage.watching.close()

    asyncio.run(story())


def test_a_watch_of_an_unchanged_node_receives_a_keepalive() -> None:
    stage = Stage(quiet_seconds=0.01)

    async def story() -> None:
        replies = stage.watch()
        await until_current(replies)
        reply = await anext(replies)
        assert reply.outcome is ReplyOutcome.CURRENT
        assert reply.daemon == DAEMON
        await stage.watching.close()

    asyncio.run(story())


def test_a_watch_ends_at_its_deadline() -> None:
    stage = Stage()

    async def story() -> None:
        outcomes = [reply.outcome async for reply in stage.watch(deadline_seconds=0.02)]
        assert outcomes[-1] is ReplyOutcome.TIMEOUT
        await stage.watching.close()

    asyncio.run(story())


STATES = st.sampled_from(WorkerState)


@given(
    st.lists(st.tuples(st.sampled_from(["w", "x"]), st.none() | STATES, st.booleans()), max_size=12)
)
def test_the_last_replies_of_a_watch_match_the_node_after_any_sequence(
    story: list[tuple[str, WorkerState | None, bool]],
) -> None:
    async def play() -> None:
        stage = Stage(quiet_seconds=0.0)
        replies = stage.watch()
        known: dict[str, WorkerState] = {}

        async def read(count: int) -> None:
            for _ in range(count):
                reply = await anext(replies)
                if reply.worker is not None:
                    known[reply.worker.worker] = reply.worker.state
                if reply.outcome is ReplyOutcome.GONE and reply.worker is not None:
                    del known[reply.worker.worker]

        await read(3)
        for name, state, reads in story:
            if state is None:
                stage.let_go(name)
            else:
                stage.show(WorkerView(name, state))
            stage.watching._distribute(stage.node)
            await read(reads)
        await read(len(story) + 1)
        assert known == {each.worker: each.state for each in stage.node.workers}
        await stage.watching.close()

    asyncio.run(play())
