"""A router's engines are looked at, not remembered: one that forgot them is told again."""

import asyncio
import logging
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
        self.said: list[str] = []

    def members(self) -> dict[str, Role]:
        if self.broken:
            raise RouterRefusedError("the router refuses: HTTP 500")
        return dict(self.engines)

    def join(self, member: Member) -> None:
        self.said.append(f"+{member.url}")
        self.engines[member.url] = member.role

    def leave(self, url: str) -> None:
        self.said.append(f"-{url}")
        del self.engines[url]


class Kept:
    """A membership that is looked at by hand."""

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

    def check(self) -> None:
        with ThreadPoolExecutor(1) as executor:
            asyncio.run(self.membership.check(executor))


def test_engines_are_put_in_taken_out_and_told_again_to_a_router_that_began_anew() -> None:
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


def test_what_a_router_has_is_not_known_while_it_does_not_run_or_refuses() -> None:
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


def test_what_a_router_had_is_not_believed_once_it_no_longer_answers() -> None:
    kept = Kept()
    kept.check()
    kept.router.broken = True
    kept.check()

    assert kept.membership.present is None
    assert kept.changes == 2
