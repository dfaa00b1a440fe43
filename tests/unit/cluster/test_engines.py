"""What the daemon makes of its workers' changes and probes."""

from __future__ import annotations

import pytest

from disagg_cluster.engines import Engines
from disagg_cluster.journal_text import Tag
from disagg_cluster.life import WorkerState
from disagg_cluster.pagewatch import PageWatch
from disagg_exporter.accounting import Ledger
from support.node_files import node, worker

STARTING, READY, DRAINING = WorkerState.STARTING, WorkerState.READY, WorkerState.DRAINING


@pytest.mark.parametrize(
    ("state", "pid", "answered", "up"),
    [
        (READY, 7, True, True),
        (READY, 7, False, False),
        (READY, 7, None, None),
        (DRAINING, 7, True, True),
        (STARTING, 7, None, False),
        (WorkerState.BACKOFF, None, True, False),
    ],
)
def test_an_engine_is_up_as_its_last_probe_says(
    state: WorkerState, pid: int | None, answered: bool | None, up: bool | None
) -> None:
    workers = node(worker("w")).workers
    engines = Engines(workers, lambda _name: Tag(), Ledger(), up_of=lambda _name: answered)
    pages = PageWatch({}, 1.0, lambda _name: False)

    engines.changed("w", WorkerState.STOPPED, state, pid, "")

    assert [status.up for status in engines.statuses(pages)] == [up]


@pytest.mark.parametrize("served", [False, True])
def test_one_that_served_before_is_asked_for_its_page_although_it_starts(served: bool) -> None:
    workers = node(worker("w")).workers
    engines = Engines(workers, lambda _name: Tag(), Ledger(), served=lambda _name: served)

    engines.changed("w", WorkerState.STOPPED, STARTING, 7, "")

    assert engines.answers("w") is served


def test_one_that_goes_on_is_given_time_to_tell_its_steps() -> None:
    """Its plugin looks for a daemon once a second: until then nothing less is taken for it."""
    workers = node(worker("w")).workers
    now_ns = 10**12
    engines = Engines(
        workers,
        lambda _name: Tag(),
        Ledger(),
        served=lambda _name: True,
        clock_ns=lambda: now_ns,
    )
    pages = PageWatch({}, 1.0, lambda _name: False)

    engines.changed("w", WorkerState.STOPPED, STARTING, 7, "")

    assert [subject.ready_ns for subject in engines.subjects(pages)] == [now_ns]
