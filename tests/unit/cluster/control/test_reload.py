"""A node file that is read again on request: once for each request, to its end, whoever waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest

from disagg_cluster.control.core import ControlCore
from disagg_cluster.control.decisions import Orders
from disagg_cluster.control.explanation import explain
from disagg_cluster.control.messages import (
    ControlReply,
    ControlRequest,
    PauseWorkers,
    ReplyOutcome,
    RereadNodeFile,
    RereadReport,
    RestartWorker,
    local_caller,
)
from disagg_cluster.control.refusal import ControlRefusal, RefusalReason
from disagg_cluster.control.remote.status_codes import code_name
from disagg_cluster.control.views import DaemonView, NodeOverview, WorkerView
from disagg_cluster.lifecycle.state import WorkerState

CALLER = local_caller(0, 1)
LOOK = RereadNodeFile(dry_run=True)
FOUND = RereadReport(("a",), ("a: env: TOKEN",), ("a: port", "listen.metrics"), digest="0af9")
NODE = NodeOverview(
    DaemonView("1.0", 1, "node", "/run/x", 1.0), (WorkerView("a", WorkerState.READY),)
)
WRONG = ControlRefusal(RefusalReason.WRONG_NODE_FILE, "nothing was changed", "mend it")


class Node:
    def __init__(self) -> None:
        self.overview = NODE

    def view(self) -> NodeOverview:
        return self.overview

    def obey(self, orders: Orders, request_id: str) -> None:
        pass


class Asked:
    """A core whose node file is read when a test says so."""

    def __init__(self) -> None:
        self.node = Node()
        self.looks: list[RereadNodeFile] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.reports: list[RereadReport | Exception] = [FOUND]
        self.core = ControlCore(self.node, logging.getLogger("test.control"), self._read)

    async def _read(self, verb: RereadNodeFile) -> RereadReport:
        self.looks.append(verb)
        await self.may_end.wait()
        report = self.reports[-1]
        if isinstance(report, Exception):
            raise report
        return report

    async def ask(self, request: ControlRequest) -> list[ControlReply]:
        return [reply async for reply in self.core.answer(request, CALLER)]

    async def reload(
        self, verb: RereadNodeFile = LOOK, request_id: str = "r", seconds: float | None = None
    ) -> ControlReply:
        [reply] = await self.ask(ControlRequest(request_id, verb, deadline_seconds=seconds))
        return reply


def played(story: Callable[[Asked], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        asked = Asked()
        try:
            await story(asked)
        finally:
            await asked.core.close()

    asyncio.run(run())


def test_changes_deferred_to_the_next_daemon_are_reported_and_remembered() -> None:
    async def story(asked: Asked) -> None:
        looked = await asked.reload()
        assert looked.explanation == (
            "a: env: TOKEN",
            "a: port (waits for the next daemon)",
            "listen.metrics (waits for the next daemon)",
        )
        assert (looked.text, looked.digest) == ("would be applied: a", "0af9")
        assert asked.core.waiting == FOUND.deferred
        asked.reports.append(RereadReport(problems=("not YAML",), refusal=WRONG))
        await asked.reload()
        assert asked.core.waiting == FOUND.deferred
        asked.reports.append(RereadReport(deferred=("links.grafana",)))
        nothing = await asked.reload(RereadNodeFile())
        assert (nothing.text, bool(nothing.way_out)) == (
            "nothing in it can be applied to a running daemon",
            True,
        )
        assert asked.core.waiting == ("links.grafana",)
        asked.reports.append(RereadReport())
        assert (await asked.reload(LOOK, "last")).way_out == ""
        assert asked.core.waiting == ()

    played(story)


def test_an_explanation_lists_the_deferred_changes_of_its_worker_only() -> None:
    daemon = replace(NODE.daemon, waiting=("a: port, model", "b: port", "listen.metrics"))
    node = replace(NODE, daemon=daemon)

    said = [line for line in explain(node.workers[0], node, 0) if "node file" in line]

    assert said == ["a change in the node file waits for the next daemon: port, model"]


@pytest.mark.parametrize(
    ("report", "outcome", "code"),
    [
        (RereadReport(problems=("1", "2"), refusal=WRONG), "refused", "FAILED_PRECONDITION"),
        (
            RereadReport(refusal=ControlRefusal(RefusalReason.CHANGED_SINCE, "why")),
            "refused",
            "ABORTED",
        ),
        (
            RereadReport(refusal=ControlRefusal(RefusalReason.CHANGE_UNDER_WAY, "why")),
            "refused",
            "ABORTED",
        ),
        (RereadReport(problems=("no thread can be had",)), "failed", "INTERNAL"),
        (RuntimeError("a defect"), "failed", "INTERNAL"),
    ],
)
def test_a_failed_reload_is_reported_counted_and_may_be_repeated(
    report: RereadReport | Exception, outcome: str, code: str
) -> None:
    async def story(asked: Asked) -> None:
        asked.reports.append(report)
        reply = await asked.reload(RereadNodeFile())
        assert (reply.outcome, code_name(reply)) == (outcome, code)
        if isinstance(report, RereadReport):
            assert reply.problems == report.problems
        assert asked.core.counts["reload", outcome] == 1
        # Requested again with the same id, once the file was corrected.
        asked.reports.append(FOUND)
        assert (await asked.reload(RereadNodeFile())).outcome is ReplyOutcome.DONE

    played(story)


def test_a_repeated_request_id_reloads_once_also_while_the_reload_runs() -> None:
    async def story(asked: Asked) -> None:
        asked.may_end.clear()
        both = [asyncio.create_task(asked.reload(RereadNodeFile())) for _ in range(2)]
        while not asked.looks:
            await asyncio.sleep(0)
        other = await asked.reload(RereadNodeFile(digest="0af9"))
        assert other.reason == "reused_id"
        asked.may_end.set()
        first, second = await asyncio.gather(*both)
        assert first == second == await asked.reload(RereadNodeFile())
        assert (first.text, asked.looks) == ("applied: a", [RereadNodeFile()])
        [paused] = await asked.ask(ControlRequest("r", PauseWorkers("a")))
        assert paused.reason == "reused_id"
        # A dry run scans the file each time.
        await asked.reload(LOOK, "look")
        await asked.reload(LOOK, "look")
        assert asked.looks[1:] == [LOOK, LOOK]

    played(story)


def test_a_reload_continues_after_its_client_disconnects_or_times_out() -> None:
    async def story(asked: Asked) -> None:
        asked.may_end.clear()
        gone = asyncio.create_task(asked.reload(RereadNodeFile()))
        late = await asked.reload(RereadNodeFile(), "late", 0.001)
        assert (late.outcome, "it goes on" in late.text) == (ReplyOutcome.TIMEOUT, True)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        asked.may_end.set()
        for request_id in ("r", "late"):
            assert (await asked.reload(RereadNodeFile(), request_id)).text == "applied: a"
        assert len(asked.looks) == 2

    played(story)


def test_a_stopping_daemon_refuses_a_reload() -> None:
    async def story(asked: Asked) -> None:
        asked.node.overview = replace(NODE, daemon=replace(NODE.daemon, stopping=True))
        assert (await asked.reload(RereadNodeFile())).reason == "stopping"
        assert (await asked.reload()).outcome is ReplyOutcome.DONE

    played(story)


def test_a_request_that_joins_a_change_receives_its_progress_at_once() -> None:
    async def story(asked: Asked) -> None:
        first = asked.core.answer(ControlRequest("1", RestartWorker("a")), CALLER)
        assert (await anext(first)).text == "a: ending"
        second = asked.core.answer(ControlRequest("2", RestartWorker("a")), CALLER)
        async with asyncio.timeout(10):
            said = await anext(second)
        assert (said.id, said.outcome, said.text) == ("2", ReplyOutcome.PROGRESS, "a: ending")
        await first.aclose()
        await second.aclose()

    played(story)
