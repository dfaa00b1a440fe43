"""A worker's steps: an unexpected error in one message is reported and stops no later one."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.telemetry.steps.step_feed import StepFeed
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.inside_engine.disagg_steps.counting import Facts
from disagg_exporter.inside_engine.disagg_steps.sender import Sender
from disagg_exporter.model import Assignment, CollectorStatus, EngineState, Role
from disagg_exporter.steps.plugin_silence import GRACE_SECONDS

FACTS = Facts(*([0] * len(Facts._fields)))._replace(
    elapsed_ns=5_000_000, context_tokens=9, context_requests=1
)


def test_an_unexpected_error_in_one_message_is_reported_and_later_ones_received(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, shown = Ledger(), list[CollectorStatus]()
    ledger.assign(Assignment("e", Role.PREFILL, (), EngineState.READY, 0))
    steps, trips = ledger.steps, iter([ValueError("a bug of ours")])

    def trip(*arguments: Any, **named: Any) -> None:
        if (error := next(trips, None)) is not None:
            raise error
        steps(*arguments, **named)

    monkeypatch.setattr(ledger, "steps", trip)
    feed = StepFeed("e", folder / "s", ledger, CapacityModel(1.0), os.getpid, {})

    async def story() -> None:
        feed.open(asyncio.get_running_loop())
        sender = Sender(str(folder / "s"))
        sender.beat()
        try:
            async with asyncio.timeout(20):
                while not (shown and shown[-1].unexpected_failures and shown[-1].success):
                    sender.step(FACTS, time.monotonic_ns())
                    sender.beat()
                    await asyncio.sleep(0.05)
                    shown.extend(feed.collectors())
        finally:
            sender.close()
            feed.close()

    monkeypatch.setattr(
        "disagg_cluster.telemetry.steps.step_feed.in_session_of", lambda _leader, _pid: True
    )
    asyncio.run(story())

    assert False in {status.success for status in shown if status.unexpected_failures}
    assert shown[-1].unexpected_failures == 1
    assert sum(sum(account.reported.steps) for account in ledger.engine_accounts(0)) > 0


def test_a_connection_refused_before_a_restart_does_not_explain_later_silence(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feed = StepFeed("e", folder / "s", Ledger(), CapacityModel(1.0), lambda: None, {})

    async def story() -> None:
        feed.open(asyncio.get_running_loop())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.connect(str(folder / "s"))
                feed.drain()
            feed.check_silence(GRACE_SECONDS, None)
            feed.begin()
            feed.check_silence(GRACE_SECONDS, None)
        finally:
            feed.close()

    asyncio.run(story())

    before, after = caplog.messages
    assert before.startswith("e: 1 connections to the steps socket came from processes outside")
    assert after.startswith("e: the plugin never connected")


def test_packets_that_are_not_understood_explain_why_no_step_is_received(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine whose cache in use is no number: each of its records is refused."""
    feed = StepFeed("e", folder / "s", Ledger(), CapacityModel(1.0), os.getpid, {})
    monkeypatch.setattr(
        "disagg_cluster.telemetry.steps.step_feed.in_session_of", lambda _leader, _pid: True
    )

    async def story() -> None:
        feed.open(asyncio.get_running_loop())
        sender = Sender(str(folder / "s"))
        try:
            sender.beat()
            for _ in range(3):
                sender.step(FACTS._replace(kv_usage_ratio=float("nan")), time.monotonic_ns())
                sender.beat()
                feed.drain()
                feed.check_silence(GRACE_SECONDS, tokens_advancing=True)
        finally:
            sender.close()
            feed.close()

    asyncio.run(story())

    [explained] = caplog.messages
    assert explained.startswith("e: the plugin is connected and what it sends is not understood")
