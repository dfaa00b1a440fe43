"""Notifications to a service manager arrive, and a failure to send them is harmless."""

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cluster.host.service_manager import LifeSigns, ServiceManager
from support.service_managers import NotifySocket

LOG = logging.getLogger("test")


@pytest.fixture(params=["in a folder", "abstract"])
def notify(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NotifySocket]:
    notify = NotifySocket(tmp_path if request.param == "in a folder" else None)
    yield notify
    notify.close()


def manager(notify: NotifySocket, **environ: str) -> ServiceManager:
    return ServiceManager({"NOTIFY_SOCKET": notify.address, **environ}, LOG)


def test_every_notification_arrives(notify: NotifySocket) -> None:
    told = manager(notify)
    told.ready()
    told.status("2 of 2\nworkers")
    told.status("2 of 2 workers")
    told.alive()
    told.extend_timeout(1.5)
    told.stopping()
    told.reloading()

    *seen, reloading = notify.waiting()
    assert seen == [
        "READY=1",
        "STATUS=2 of 2 workers",
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=1500000",
        "STOPPING=1",
    ]
    assert reloading.startswith("RELOADING=1\nMONOTONIC_USEC=")


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_that_of_this_process(
    notify: NotifySocket, environ: dict[str, str], seconds: float | None
) -> None:
    assert manager(notify, **environ).watchdog_seconds == seconds


@pytest.mark.parametrize("named", ["", "vsock:2:1", "relative"])
def test_nothing_is_sent_without_a_supported_address(named: str) -> None:
    nobody = ServiceManager({"NOTIFY_SOCKET": named, "WATCHDOG_USEC": "1"}, LOG)
    nobody.ready()

    assert not nobody.listens
    assert nobody.watchdog_seconds is None


def test_an_unreachable_manager_is_logged_once_and_blocks_nothing(
    notify: NotifySocket, caplog: pytest.LogCaptureFixture
) -> None:
    told = manager(notify)
    for _ in range(5000):
        told.alive()
    assert caplog.text.count("cannot be notified") == 1

    notify.close()
    told.ready()
    assert caplog.text.count("cannot be notified") == 1


def signs(notify: NotifySocket, well: list[bool], usec: int = 40_000) -> LifeSigns:
    told = manager(notify, WATCHDOG_USEC=str(usec))
    return LifeSigns(told, lambda: well[0], lambda: "2 of 2 workers ready")


def test_the_watchdog_is_notified_only_while_the_daemon_is_healthy(notify: NotifySocket) -> None:
    well = [True]

    async def story() -> None:
        async with signs(notify, well).given():
            seen = await asyncio.to_thread(notify.until, "WATCHDOG=1")
            assert "STATUS=2 of 2 workers ready" in seen
            well[0] = False
            # A beat of the watchdog's task after that is certain to have observed it.
            await asyncio.sleep(0.05)
            notify.waiting()
            assert await asyncio.to_thread(notify.is_silent, 0.2)
            well[0] = True
            await asyncio.to_thread(notify.until, "WATCHDOG=1")

    asyncio.run(story())


def test_a_hung_event_loop_sends_no_watchdog_notification(notify: NotifySocket) -> None:
    async def story() -> None:
        async with signs(notify, [True]).given():
            await asyncio.to_thread(notify.until, "WATCHDOG=1")
            notify.waiting()
            assert notify.is_silent(0.2)  # awaited by the loop's own thread
            await asyncio.to_thread(notify.until, "WATCHDOG=1")

    asyncio.run(story())


def test_stopping_is_sent_once_and_requests_time(notify: NotifySocket) -> None:
    async def story() -> None:
        ending = signs(notify, [True], usec=60_000_000)
        async with ending.given():
            ending.end()
            ending.end()

    asyncio.run(story())
    seen = notify.waiting()
    assert seen[:2] == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=30000000"]
    assert seen.count("STOPPING=1") == 1
