"""Membership follows what the router reports: a restarted router gets its engines again."""

import asyncio
import contextlib
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from disagg_cluster.switching.members import Member
from disagg_cluster.switching.membership import Membership
from disagg_cluster.switching.router_admin import RouterRefusedError
from disagg_exporter.model import Role

LOG = logging.getLogger(__name__)
A, B = Member("a", Role.PREFILL, "m"), Member("b", Role.DECODE, "m")


class Router:
    """A router in memory."""

    def __init__(self) -> None:
        self.engines: dict[str, Role] = {}
        self.broken = False
        self.refused: set[str] = set()
        self.said: list[str] = []

    def members(self) -> dict[str, Role]:
        if self.broken:
            raise RouterRefusedError("the router refuses: HTTP 500")
        return dict(self.engines)

    def join(self, member: Member) -> None:
        self.said.append(f"+{member.url}")
        self._check(member.url)
        self.engines[member.url] = member.role

    def leave(self, url: str) -> None:
        self.said.append(f"-{url}")
        self._check(url)
        del self.engines[url]

    def _check(self, url: str) -> None:
        if url in self.refused:
            raise RouterRefusedError(f"the router refuses: HTTP 400: {url}")


class Kept:
    """A membership whose checks are run by the test."""

    def __init__(self) -> None:
        self.router = Router()
        self.desired = [A, B]
        self.pid: int | None = 7
        self.changes = 0
        self.membership = Membership(
            self.router, lambda: self.desired, {"a", "b"}, lambda: self.pid, self._changed, LOG
        )

    def _changed(self) -> None:
        self.changes += 1

    def run(self, seconds: float) -> None:
        async def run() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.membership.run()

        asyncio.run(run())

    def check(self) -> None:
        with ThreadPoolExecutor(1) as executor:
            asyncio.run(self.membership.check(executor))


def test_engines_join_and_leave_and_join_again_after_a_router_restart() -> None:
    kept = Kept()
    kept.check()
    assert kept.membership.present == {"a": Role.PREFILL, "b": Role.DECODE}
    kept.desired = [A]
    kept.check()
    assert kept.router.said == ["+a", "+b", "-b"]
    kept.router.engines.clear()
    kept.check()

    assert kept.membership.present == {"a": Role.PREFILL}
    assert kept.changes == 2


def test_the_members_of_a_router_are_unknown_while_it_does_not_run_or_refuses() -> None:
    kept = Kept()
    kept.check()
    kept.pid = None
    kept.check()
    assert kept.membership.present is None
    assert kept.membership.collectors() == ()

    kept.pid, kept.router.broken = 8, True
    kept.check()

    assert kept.membership.present is None
    assert not kept.membership.collectors()[0].success
    kept.router.broken = False
    kept.check()
    assert kept.membership.present == {"a": Role.PREFILL, "b": Role.DECODE}


def test_the_members_of_a_router_become_unknown_when_it_stops_answering() -> None:
    kept = Kept()
    kept.check()
    kept.router.broken = True
    kept.check()

    assert kept.membership.present is None
    assert kept.changes == 2


def test_an_engine_that_the_router_refuses_keeps_no_other_out() -> None:
    """An engine of another node that is down is refused for as long as that lasts."""
    kept = Kept()
    kept.router.refused = {"a"}
    kept.check()

    assert kept.membership.present == {"b": Role.DECODE}
    assert kept.router.said == ["+a", "+b"]
    assert not kept.membership.collectors()[0].success

    kept.router.refused = set()
    kept.check()
    assert kept.membership.present == {"a": Role.PREFILL, "b": Role.DECODE}
    assert kept.membership.collectors()[0].success


def test_an_engine_that_does_not_leave_does_not_join_in_another_role() -> None:
    kept = Kept()
    kept.check()
    kept.desired = [Member("a", Role.DECODE, "m"), B]
    kept.router.refused, kept.router.said = {"a"}, []
    kept.check()

    assert kept.router.said == ["-a"]
    assert kept.membership.present == {"a": Role.PREFILL, "b": Role.DECODE}


def test_the_desired_engines_are_read_in_the_loop() -> None:
    """A reload replaces the workers there: another thread would see half of it."""
    threads: set[str] = set()
    kept = Kept()

    def desired() -> list[Member]:
        threads.add(threading.current_thread().name)
        return [A, B]

    kept.membership = Membership(
        kept.router, desired, {"a", "b"}, lambda: 7, lambda: None, logging.getLogger(__name__)
    )
    kept.run(0.3)

    assert kept.membership.present == {"a": Role.PREFILL, "b": Role.DECODE}
    assert threads == {threading.current_thread().name}


def test_a_router_that_refuses_an_engine_is_asked_ever_less_often() -> None:
    kept = Kept()
    kept.router.refused = {"a"}
    kept.run(1.7)

    assert 2 <= kept.router.said.count("+a") <= 5


def test_a_change_is_made_at_once_while_the_router_refuses_another() -> None:
    kept = Kept()
    kept.router.refused, kept.desired = {"a"}, [A]

    async def asked(times: int) -> None:
        while kept.router.said.count("+a") < times:
            await asyncio.sleep(0.01)

    async def run() -> None:
        running = asyncio.create_task(kept.membership.run())
        async with asyncio.timeout(30):
            await asked(3)
        kept.desired, kept.router.said = [A, B], []
        kept.membership.check_now()
        # Not after 0.8 s and 1.6 s more, whose turn it was.
        async with asyncio.timeout(1.5):
            await asked(2)
        running.cancel()

    asyncio.run(run())

    assert kept.router.said[:2] == ["+a", "+b"]
    assert kept.router.said.count("+a") > 1
    assert kept.membership.present == {"b": Role.DECODE}
