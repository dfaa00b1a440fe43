"""Accounts for every engine by its best source: its steps if it reports them, else its page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from disagg_cluster.host.processes.procfs import cpu_seconds_of_tree
from disagg_exporter.accounting import Ledger
from disagg_exporter.attribution.pages.page_windows import PageWindows
from disagg_exporter.attribution.pages.prefill_shares import LearnedShares, PhaseShares
from disagg_exporter.attribution.pages.sources import (
    LastReceived,
    LeaderShare,
    choose_source,
    role_window,
)
from disagg_exporter.model import EnginePage, Method, Phase, Role, WorkWindow
from disagg_exporter.roles.command_line.spanning import EnginePart

_log = logging.getLogger("disagg_node")

# A plugin that will report steps says hello as soon as it is loaded, long before its engine is
# ready. An engine that has been ready for this long and has reported none is accounted by its page.
SETTLE_NS = 5_000_000_000

_PHASES = (Role.PREFILL, Role.DECODE)


@dataclass(frozen=True, slots=True)
class SourceCandidate:
    """One engine as input to source selection.

    `pid` is the root of its own process tree. `ready_ns` is since when it serves; None while it
    does not. `page` is its last metrics page. `last_received` is when single steps were last
    received, by method. `part` is set if it is one part of an engine that spans nodes.
    `step_tokens` is the most tokens it computes in a step, None if unknown.
    """

    engine: str
    role: Role
    devices: tuple[str, ...]
    pid: int | None
    ready_ns: int | None
    page: EnginePage | None
    last_received: LastReceived
    part: EnginePart | None = None
    step_tokens: int | None = None

    @property
    def follows(self) -> bool:
        """Whether another part leads; only the leader reports what the engine does."""
        return self.part is not None and self.part.follows

    def leads(self, other: SourceCandidate) -> bool:
        """Whether another engine is a follower of this one."""
        return self.part is not None and other.part is not None and self.part.leads(other.part)


@dataclass(slots=True)
class _Selection:
    """The state kept for one engine; `reporting`: its method was received last time."""

    windows: PageWindows
    method: Method = Method.STEPS
    role_since_ns: int | None = None
    pid: int | None = None
    reporting: bool = False
    led: LeaderShare = field(default_factory=LeaderShare)


class SourceSelection:
    """Chooses each engine's source once a second, and accounts for engines without steps.

    Args:
        ledger: Receives the source by which an engine is accounted, and its windows.
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
        self._selections: dict[str, _Selection] = {}

    def select(self, candidates: Iterable[SourceCandidate], now_ns: int) -> Mapping[str, Exception]:
        """Choose for all engines; forget those that are no longer among them.

        Returns errors by engine. Such an engine is left out until its next page, and the others are
        accounted for.
        """
        here = {candidate.engine: candidate for candidate in candidates}
        for gone in self._selections.keys() - here.keys():
            del self._selections[gone]
        self._share_leaders_time(here, now_ns)
        errors: dict[str, Exception] = {}
        for candidate in here.values():
            try:
                self._select(candidate, now_ns)
            except Exception as error:  # noqa: BLE001 - an engine may report anything
                self._selections[candidate.engine].windows.forget()
                errors[candidate.engine] = error
        return errors

    def shares(self, engine: str) -> LearnedShares | None:
        """Return an engine's phase costs as learned from its page."""
        selection = self._selections.get(engine)
        return None if selection is None else selection.windows.shares.save()

    def learned_stretches(self, engine: str) -> int:
        """Return how many stretches an engine's costs were learned from."""
        selection = self._selections.get(engine)
        return 0 if selection is None else selection.windows.shares.stretches

    def restore_shares(self, engine: str, saved: LearnedShares | None) -> None:
        """Replace the learned costs of a known engine with those that were saved."""
        if engine in self._selections:
            self._selections[engine].windows.shares = PhaseShares.restored(saved)

    def _share_leaders_time(self, here: Mapping[str, SourceCandidate], now_ns: int) -> None:
        """Tell local followers how the time of their leader, if local too, divides into phases."""
        used: dict[str, Mapping[tuple[Role, Phase], float]] = {}
        for name, candidate in here.items():
            if not candidate.follows or name not in self._selections:
                continue
            leader = next((each.engine for each in here.values() if each.leads(candidate)), None)
            if leader is None:
                self._selections[name].led = LeaderShare()
                continue
            used = used or {a.engine: a.gpu_seconds for a in self._ledger.engine_accounts(now_ns)}
            self._selections[name].led.ingest(used.get(leader, {}))

    def _select(self, candidate: SourceCandidate, now_ns: int) -> None:
        selection = self._selections.get(candidate.engine)
        if selection is None:
            active = partial(self._ledger.active_seconds, candidate.engine)
            selection = self._selections[candidate.engine] = _Selection(PageWindows(active))
        if selection.pid != candidate.pid or candidate.ready_ns is None:
            selection.pid, selection.role_since_ns = candidate.pid, None
            selection.windows.forget()
        if candidate.ready_ns is None:
            return
        received = self._all_received(candidate, now_ns)
        method = choose_source(selection.method, received, now_ns)
        if method is not selection.method:
            before = f", no longer by {selection.method}" if selection.reporting else ""
            unknown = method is Method.PAGE_CPU and candidate.pid is None
            how = (
                "not measured: its processes are not known" if unknown else f"measured by {method}"
            )
            _log.info("%s: %s%s", candidate.engine, how, before)
            selection.method = method
        selection.reporting = method in received
        # Each time: the account of an engine begins when it is first assigned.
        self._ledger.use(candidate.engine, method, now_ns)
        self._account(candidate, selection, now_ns)

    def _account(self, candidate: SourceCandidate, selection: _Selection, now_ns: int) -> None:
        if selection.method in (Method.ROLE, Method.FOLLOWER):
            since_ns = selection.role_since_ns or now_ns
            selection.role_since_ns = now_ns
            window = _by_activity(candidate, selection, since_ns, now_ns)
        elif candidate.page is not None and not selection.method.by_step:
            window = selection.windows.ingest(
                candidate.page,
                candidate.role,
                selection.method,
                self._cpu(candidate, selection.method),
                candidate.step_tokens,
            )
        else:
            selection.windows.forget()
            window = None
        if window is not None:
            self._ledger.window(candidate.engine, window)

    def _cpu(self, candidate: SourceCandidate, method: Method) -> float | None:
        if method is not Method.PAGE_CPU or candidate.pid is None:
            return None
        return self._cpu_seconds(candidate.pid)

    def _all_received(self, candidate: SourceCandidate, now_ns: int) -> LastReceived:
        """Return when each source was last received, the page and the role included."""
        received = dict(candidate.last_received)
        if candidate.follows:
            led = self._selections[candidate.engine].led.prefill_share is not None
            if self._is_read(candidate) and (led or candidate.role in _PHASES):
                received[Method.FOLLOWER] = now_ns
            # Its own page counts only what its leader's page counts already.
            return received
        if not received and (candidate.ready_ns is None or now_ns - candidate.ready_ns < SETTLE_NS):
            return received
        read = self._is_read(candidate)
        if candidate.page is not None:
            received[_of_page(candidate.page, on_cpu=not read)] = candidate.page.t_ns
        if read and candidate.role in _PHASES:
            received[Method.ROLE] = now_ns
        return received

    def _is_read(self, candidate: SourceCandidate) -> bool:
        """Whether the activity of its devices is measured."""
        return not any(self._ledger.is_pseudo(gpu) for gpu in candidate.devices)


def _by_activity(
    candidate: SourceCandidate, selection: _Selection, since_ns: int, now_ns: int
) -> WorkWindow | None:
    """Return a window in which only the phase of active devices is known."""
    if since_ns >= now_ns:
        return None
    share = selection.led.prefill_share
    if selection.method is Method.FOLLOWER and share is not None:
        return WorkWindow(since_ns, now_ns, Method.FOLLOWER, share)
    window = role_window(candidate.role, since_ns, now_ns)
    return None if window is None else replace(window, method=selection.method)


def _of_page(page: EnginePage, *, on_cpu: bool) -> Method:
    """Return the method that an engine's page allows."""
    if page.prefill_seconds_total is not None or page.decode_seconds_total is not None:
        return Method.ENGINE_TIMERS
    return Method.PAGE_CPU if on_cpu else Method.PAGE
