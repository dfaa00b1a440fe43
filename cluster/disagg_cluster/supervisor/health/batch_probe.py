"""Whether workers that were healthy a moment ago plainly still are: one look at all of them.

A probe that finds nothing new is nearly all of what probing costs. Here the answers of all workers
are awaited together, and the table of who listens is read once after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from disagg_cluster.host.tcp_listeners import inodes_by_port
from disagg_cluster.supervisor.health.readiness import Target, question
from disagg_cluster.telemetry.pages.engine_tls import client_for
from disagg_exporter.http.client.page_poller import Asking
from disagg_exporter.http.tls_words import TlsError

_MAX_BYTES = 256 * 1024


def plainly_well(
    workers: Sequence[tuple[Target, frozenset[int]]], patience_seconds: float
) -> tuple[bool, ...]:
    """Say of each worker whether it answers 200 and its port still has the very sockets proven.

    Of all others nothing is said: a probe will tell what is the matter.

    Args:
        workers: Where each should answer, and the sockets that were proven to be its own.
        patience_seconds: For all answers together.
    """
    try:
        answered = _answered([target for target, _ in workers], patience_seconds)
        # After the answers: whoever gave them listened then.
        listening = inodes_by_port()
    except OSError:
        return (False,) * len(workers)
    return tuple(
        # Whatever the address: who listens beside them on another one is seldom there at all.
        bool(proven) and number in answered and listening.get(target.port) == proven
        for number, (target, proven) in enumerate(workers)
    )


def _answered(targets: Sequence[Target], patience_seconds: float) -> set[int]:
    """The numbers of those that answer their health path with 200."""
    with closing(Asking(_MAX_BYTES, keep=False)) as asking:
        left, answered = 0, set()
        for number, target in enumerate(targets):
            try:
                tls = None if target.tls is None else client_for(target.tls)
            except TlsError:
                continue
            asking.ask(question(str(number), target, target.health_path, patience_seconds, tls))
            left += 1
        while left:
            for told in asking.step():
                left -= 1
                # Any other is probed by itself, which says what is wrong.
                if isinstance(told.page, bytes):
                    answered.add(int(told.ask.key))
        return answered
