"""Keeps a router's engines as desired: polled regularly, corrected at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from disagg_cluster.switching.members import Member, membership_changes
from disagg_exporter.collectors import Backoff, CollectorHealth, DaemonExecutor
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import CollectorStatus, Role

COLLECTOR = "router_members"

_POLL_SECONDS = 2.0
_HURRY = Backoff(0.2, _POLL_SECONDS)


class MemberRegistry(Protocol):
    """A router's registry; each call raises `DisaggError` if it fails."""

    def members(self) -> dict[str, Role]:
        """Its engines by URL."""

    def join(self, member: Member) -> None:
        """Let it send requests to an engine."""

    def leave(self, url: str) -> None:
        """Stop it from sending new requests to an engine."""


class Membership:
    """The engines of one router.

    Args:
        router: The router's registry.
        desired: Returns the desired engines.
        ours: The URLs of all engines that we may remove.
        process: Returns the pid of the router's current process, None without one.
        changed: Called after each check that found a difference.
        log: Logs changes, and failures to make them.
    """

    def __init__(
        self,
        router: MemberRegistry,
        desired: Callable[[], Collection[Member]],
        ours: Collection[str],
        process: Callable[[], int | None],
        changed: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self._router = router
        self._desired = desired
        self._ours = frozenset(ours)
        self._process = process
        self._changed = changed
        self._log = log
        self._health = CollectorHealth(
            COLLECTOR,
            log,
            failing="the router's engines: ",
            recovered="the router's engines are as desired again",
            # A starting router cannot answer at once.
            silent_failures=5,
        )
        self._present: Mapping[str, Role] | None = None
        self._check_requested = asyncio.Event()

    @property
    def present(self) -> Mapping[str, Role] | None:
        """Its engines by URL; None while unknown."""
        return self._present

    def add_owned(self, urls: Collection[str]) -> None:
        """Also treat these as engines that we may remove."""
        self._ours |= frozenset(urls)

    def check_now(self) -> None:
        """Check now: the desired engines may have changed."""
        self._check_requested.set()

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """The collector `router_members`, after the first check."""
        return (self._health.status(),) if self._health.tried else ()

    async def run(self) -> None:
        """Check until cancelled."""
        executor = DaemonExecutor(1, "router-members")
        attempts = 0
        try:
            while True:
                if self._check_requested.is_set():
                    attempts = 0
                self._check_requested.clear()
                await self.check(executor)
                behind = self._present is None or self._needed(self._present)
                attempts = attempts + 1 if behind else 0
                # A router that does not answer, or refuses an engine, may do so for hours.
                seconds = _HURRY.seconds(attempts) if behind else _POLL_SECONDS
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._check_requested.wait()
        finally:
            executor.shutdown(wait=False)

    async def check(self, executor: DaemonExecutor) -> None:
        """Read its engines, and correct them."""
        before = self._present
        present: Mapping[str, Role] | None = None
        if self._process() is None:
            self._health.rest()
        else:
            loop = asyncio.get_running_loop()
            with self._health.round() as problems:
                # Decided here: in another thread, a reload could be half done.
                desired = tuple(self._desired())
                present, failed = await loop.run_in_executor(executor, self._correct, desired)
                problems |= failed
        self._present = present
        if present != before:
            self._changed()

    def _needed(self, present: Mapping[str, Role]) -> bool:
        needed = membership_changes(self._desired(), self._ours, present)
        return bool(needed.leave or needed.join)

    def _correct(self, desired: Collection[Member]) -> tuple[Mapping[str, Role], dict[str, str]]:
        """Make the needed changes; return its engines then, and the failed changes by URL."""
        present, failed = self._router.members(), dict[str, str]()
        needed = membership_changes(desired, self._ours, present)
        if not (needed.leave or needed.join):
            return present, failed
        for url in needed.leave:
            try:
                self._router.leave(url)
            except DisaggError as error:
                failed[url] = f"{url}: {error}"
            else:
                self._log.info("the router sends no new requests to %s", url)
        for member in needed.join:
            if member.url in failed:
                continue
            try:
                self._router.join(member)
            except DisaggError as error:
                # Such as an engine of another node that is down: the others are added all the same.
                failed[member.url] = f"{member.url}: {error}"
            else:
                self._log.info("the router sends %s requests to %s", member.role, member.url)
        return self._router.members(), failed
