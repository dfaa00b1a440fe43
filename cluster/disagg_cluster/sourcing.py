"""Books every engine by the best source it has: steps where it tells them, else its page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from disagg_cluster.procfs import cpu_seconds_of_tree
from disagg_exporter.accounting import Ledger
from disagg_exporter.model import EnginePage, Method, Role
from disagg_exporter.sources import Heard, Stretches, choose, role_window

_log = logging.getLogger("disagg_node")

# A plugin that will tell steps says hello as soon as it is loaded, long before an engine is ready.
# An engine that is ready for this long and has told no step is booked by its page.
SETTLE_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Subject:
    """One engine as the sources see it.

    `pid` is the process above all of its own. `ready_ns` is since when it serves; None while it
    does not. `page` is its last metrics page. `heard` says when the sources that tell single steps
    told something last. `follows` is whether it is one node's part of an engine that is led
    elsewhere.
    """

    engine: str
    role: Role
    devices: tuple[str, ...]
    pid: int | None
    ready_ns: int | None
    page: EnginePage | None
    heard: Heard
    follows: bool = False


@dataclass(slots=True)
class _Followed:
    """What is remembered of one engine; `told` says whether its method has ever told anything."""

    stretches: Stretches
    method: Method = Method.STEPS
    role_since_ns: int | None = None
    pid: int | None = None
    told: bool = False


class Sourcing:
    """Looks at all engines once a second, chooses their source and books what has no steps.

    Args:
        ledger: Told which source an engine is booked by, and of its stretches.
        cpu_seconds: The CPU time of a process and its children.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        cpu_seconds: Callable[[int], float | None] = cpu_seconds_of_tree,
    ) -> None:
        self._ledger = ledger
        self._cpu_seconds = cpu_seconds
        self._followed: dict[str, _Followed] = {}

    def look(self, subjects: Iterable[Subject], now_ns: int) -> None:
        """Take one look at all engines; those that are not among them any more are forgotten."""
        here = {subject.engine: subject for subject in subjects}
        for gone in self._followed.keys() - here.keys():
            del self._followed[gone]
        for subject in here.values():
            self._look(subject, now_ns)

    def _look(self, subject: Subject, now_ns: int) -> None:
        followed = self._followed.get(subject.engine)
        if followed is None:
            active = partial(self._ledger.active_seconds, subject.engine)
            followed = self._followed[subject.engine] = _Followed(Stretches(active))
        if followed.pid != subject.pid or subject.ready_ns is None:
            followed.pid, followed.role_since_ns = subject.pid, None
            followed.stretches.forget()
        if subject.ready_ns is None:
            return
        heard = self._heard(subject, now_ns)
        method = choose(followed.method, heard, now_ns)
        if method is not followed.method:
            before = f", no longer by {followed.method}" if followed.told else ""
            _log.info("%s: measured by %s%s", subject.engine, method, before)
            followed.method = method
        followed.told = method in heard
        # Told at every look: the books of an engine begin when it is first assigned.
        self._ledger.use(subject.engine, method, now_ns)
        self._book(subject, followed, now_ns)

    def _book(self, subject: Subject, followed: _Followed, now_ns: int) -> None:
        if followed.method in (Method.ROLE, Method.FOLLOWER):
            since_ns = followed.role_since_ns or now_ns
            followed.role_since_ns = now_ns
            stretch = role_window(subject.role, since_ns, now_ns) if since_ns < now_ns else None
            if stretch is not None:
                stretch = replace(stretch, method=followed.method)
        elif subject.page is not None and not followed.method.by_step:
            stretch = followed.stretches.look(
                subject.page, subject.role, followed.method, self._cpu(subject, followed.method)
            )
        else:
            followed.stretches.forget()
            stretch = None
        if stretch is not None:
            self._ledger.window(subject.engine, stretch)

    def _cpu(self, subject: Subject, method: Method) -> float | None:
        if method is not Method.PAGE_CPU or subject.pid is None:
            return None
        return self._cpu_seconds(subject.pid)

    def _heard(self, subject: Subject, now_ns: int) -> Heard:
        """Return when each source told something last, the page and the role among them."""
        heard = dict(subject.heard)
        if subject.follows:
            return {**heard, **self._followers(subject, now_ns)}
        if not heard and (subject.ready_ns is None or now_ns - subject.ready_ns < SETTLE_NS):
            return heard
        on_cpu = any(self._ledger.is_pseudo(gpu) for gpu in subject.devices)
        if subject.page is not None:
            heard[_of_page(subject.page, on_cpu=on_cpu)] = subject.page.t_ns
        if self._tells_a_phase(subject):
            heard[Method.ROLE] = now_ns
        return heard

    def _followers(self, subject: Subject, now_ns: int) -> Heard:
        """What tells of a follower: timers of its own ranks, else its devices and its role.

        A page of its own that counts nothing would leave its time to no phase, or to the wrong one.
        """
        heard: dict[Method, int] = {}
        page = subject.page
        if page is not None and (page.prefill_seconds_total or page.decode_seconds_total):
            heard[Method.ENGINE_TIMERS] = page.t_ns
        if self._tells_a_phase(subject):
            heard[Method.FOLLOWER] = now_ns
        return heard

    def _tells_a_phase(self, subject: Subject) -> bool:
        """Whether the activity of its devices is known, and which phase all of it is."""
        on_cpu = any(self._ledger.is_pseudo(gpu) for gpu in subject.devices)
        return not on_cpu and subject.role in (Role.PREFILL, Role.DECODE)


def _of_page(page: EnginePage, *, on_cpu: bool) -> Method:
    """Return what an engine's page is good for."""
    if page.prefill_seconds_total is not None or page.decode_seconds_total is not None:
        return Method.ENGINE_TIMERS
    return Method.PAGE_CPU if on_cpu else Method.PAGE
