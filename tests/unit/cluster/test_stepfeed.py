"""What a worker's steps say of its life."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from disagg_cluster.stepfeed import StepFeed
from disagg_exporter.accounting import Ledger
from disagg_exporter.fullness import Fullness
from disagg_exporter.inside_engine.disagg_steps import wire


def test_only_steps_with_work_are_life(tmp_path: Path) -> None:
    """A heartbeat tells that the plugin lives, a filler that its peers do."""

    async def story() -> None:
        pid, path = os.getsid(0), tmp_path / "w.sock"
        now_ns = 10_000
        clock = lambda: now_ns  # noqa: E731
        feed = StepFeed("w", path, Ledger(), Fullness(0.05), lambda: pid, {}, clock_ns=clock)
        feed.open(asyncio.get_running_loop())
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(str(path))

            def told(kind: int, t_ns: int, flags: int = 0) -> int | None:
                fields = dict.fromkeys(wire.Record._fields, 0) | {
                    "version": wire.VERSION,
                    "kind": kind,
                    "flags": flags,
                    "incarnation": 1,
                    "sequence": t_ns,
                    "t_ns": t_ns,
                    "generation_requests": 1,
                    "generation_tokens": 1,
                }
                link.send(wire.encode(wire.Record(**fields)))
                feed.drain()
                return feed.worked_ns

            assert told(wire.HELLO, 1) is None
            assert told(wire.HEARTBEAT, 2) is None
            assert told(wire.STEP, 3, wire.DUMMY) is None
            assert told(wire.STEP, 4) == 4
            assert told(wire.STEP, 5, wire.DUMMY) == told(wire.HEARTBEAT, 6) == 4
            assert told(wire.STEP, 2**50) == now_ns
            feed.begin()
            assert feed.worked_ns is None
        feed.close()

    asyncio.run(story())
