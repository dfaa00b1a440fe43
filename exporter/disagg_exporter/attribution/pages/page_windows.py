"""Windows of work of engines that report no steps, and which source an engine is measured by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from disagg_exporter.attribution.pages.first_prompts import HELD_METHODS, FirstPrompts, rests
from disagg_exporter.attribution.pages.prefill_shares import Counts, PhaseShares
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.window import EngineWindow, window
from disagg_exporter.model import (
    EnginePage,
    Histogram,
    Method,
    Phase,
    Role,
    ServingCounts,
    Split,
    WorkWindow,
)

_SECOND_NS = 1_000_000_000

ActiveSeconds = Callable[[int, int], float]
"""How long the engine's devices were active in (start_ns, end_ns], averaged over them."""


class _Look(NamedTuple):
    """A page, and the CPU time of its engine's processes so far where that was asked for."""

    page: EnginePage
    cpu_seconds: float | None


class PageWindows:
    """What one engine did between one scrape of its page and the next.

    Args:
        active_seconds: Asked where the page itself does not say how long the engine was busy.
    """

    def __init__(self, active_seconds: ActiveSeconds) -> None:
        self.shares = PhaseShares()
        self._active_seconds = active_seconds
        self._first_prompts = FirstPrompts()
        self._before: _Look | None = None
        self._latest: _Look | None = None

    def ingest(
        self,
        page: EnginePage,
        role: Role,
        method: Method,
        cpu_seconds: float | None = None,
        step_tokens: int | None = None,
    ) -> WorkWindow | None:
        """Return what happened since the page before; None for the first, or for the same again.

        `cpu_seconds` is the CPU time of the engine's processes so far, for `Method.PAGE_CPU`.
        `step_tokens` is how many tokens each of its ranks computes in a step at most. None, too,
        while an engine that looks at rest may be computing a prompt: the next window then begins
        where that rest began.
        """
        before, latest, look = self._before, self._latest, _Look(page, cpu_seconds)
        if latest is not None and page.t_ns <= latest.page.t_ns:
            return None
        self._latest = look
        self.shares.limit_steps(None if step_tokens is None else step_tokens * page.ranks)
        if before is None or latest is None:
            self._before = look
            return None
        try:
            did, lately = window(before.page, page), window(latest.page, page)
        except PageError:
            self._before = look
            return None
        busy_seconds = self._busy_seconds(did, method, before, look)
        resting = method in HELD_METHODS and rests(before.page, page, did)
        if resting and busy_seconds is not None:
            active_seconds = self._busy_seconds(lately, method, latest, look) or 0.0
            if self._first_prompts.may_come(did.seconds, active_seconds / lately.seconds, method):
                return None
            busy_seconds = 0.0
        self._before = look
        if busy_seconds is None:
            return None
        counts = _counts(before.page, page, did)
        held = before is not latest
        if held and not resting:
            # It was begun no earlier than its first token took, and a look before that.
            waited_seconds = _first_token_seconds(before.page, page, did)
            if waited_seconds is not None:
                busy_seconds = min(busy_seconds, waited_seconds + lately.seconds)
        made = self._window(did, page, role, method, counts, busy_seconds)
        return replace(made, busy_ns=round(busy_seconds * _SECOND_NS)) if held or resting else made

    def forget(self) -> None:
        """Take the next page as the first: there was none for a while, or another process came."""
        self._before = self._latest = None

    def _busy_seconds(
        self, did: EngineWindow, method: Method, before: _Look, after: _Look
    ) -> float | None:
        match method:
            case Method.ENGINE_TIMERS:
                return _timed(did)
            case Method.PAGE_CPU:
                if before.cpu_seconds is None or after.cpu_seconds is None:
                    return None
                return min(max(after.cpu_seconds - before.cpu_seconds, 0.0), did.seconds)
            case _:
                return self._active_seconds(did.start_ns, did.end_ns)

    def _window(
        self,
        did: EngineWindow,
        page: EnginePage,
        role: Role,
        method: Method,
        counts: Counts,
        busy_seconds: float,
    ) -> WorkWindow:
        timed = method is Method.ENGINE_TIMERS
        if timed:
            share = (did.prefill_seconds or 0.0) / busy_seconds if busy_seconds else 0.0
        else:
            self.shares.learn(counts, busy_seconds, did.seconds)
            share = self.shares.share(role, counts, busy_seconds)
        reported = timed or method is Method.PAGE_CPU
        return WorkWindow(
            start_ns=did.start_ns,
            end_ns=did.end_ns,
            method=method,
            prefill_share=share,
            busy_ns=round(busy_seconds * _SECOND_NS) if reported else None,
            prefill_tokens=counts.prefill_tokens,
            decode_tokens=counts.decode_tokens,
            running=_whole(page.running),
            waiting=_whole(page.waiting),
            deferred=_whole(page.deferred),
            kv_usage_ratio=page.kv_usage_ratio,
            split=Split.NONE if timed else self.shares.split,
            residual_ratio=None if timed else self.shares.residual_ratio,
            fitted=0 if timed else self.shares.stretches,
            cut_prompts=not timed and self.shares.cuts_prompts,
        )


def _timed(did: EngineWindow) -> float:
    """How long an engine ran by its own timers."""
    return min((did.prefill_seconds or 0.0) + (did.decode_seconds or 0.0), did.seconds)


def _counts(before: EnginePage, after: EnginePage, did: EngineWindow) -> Counts:
    """What the engine counted between two pages, in the phases' words (A4).

    A prompt's first token comes with its prefill. Of a request whose KV came from elsewhere it is
    decode's, too. Ranks step side by side. Where steps are not counted, each is taken to write a
    token for every request that runs.
    """
    made, computed = did.generation_tokens or 0.0, did.computed_tokens or 0.0
    prompts = computed + (did.external_tokens or 0.0)
    old = ServingCounts() if did.reset else before.serving
    first = sum(_buckets(old.time_to_first_token, after.serving.time_to_first_token))
    own = first * computed / prompts if prompts else 0.0
    decoded = max(made - own, 0.0)
    steps = (did.steps or 0.0) / after.ranks
    if did.steps is None:
        steps = decoded / max(((before.running or 0.0) + (after.running or 0.0)) / 2, 1.0)
    gaps = _buckets(old.inter_token_latency, after.serving.inter_token_latency)
    return Counts(round(computed), round(decoded), steps, own, gaps)


def _first_token_seconds(before: EnginePage, after: EnginePage, did: EngineWindow) -> float | None:
    """Sum up how long first tokens took that came between two pages; None if none is known."""
    old = ServingCounts() if did.reset else before.serving
    first, was = after.serving.time_to_first_token, old.time_to_first_token
    grown = sum(_buckets(was, first))
    if first is None or not grown:
        return None
    seconds = first.sum - (was.sum if was is not None else 0.0)
    return seconds if seconds > 0 else None


def _buckets(before: Histogram | None, after: Histogram | None) -> tuple[float, ...]:
    """How many observations each bucket has got since; none where they are not exposed."""
    if after is None:
        return ()
    old = before.counts if before is not None else (0.0,) * len(after.counts)
    grown = [new - was for was, new in zip(old, after.counts, strict=True)]
    return tuple(max(upper - lower, 0.0) for lower, upper in pairwise([0.0, *grown]))


def role_window(role: Role, start_ns: int, end_ns: int) -> WorkWindow | None:
    """Return the window of an engine that exposes nothing: all activity of its devices is its role.

    None where the role does not say which phase that is.
    """
    if role not in (Role.PREFILL, Role.DECODE):
        return None
    share = 1.0 if role is Role.PREFILL else 0.0
    return WorkWindow(start_ns, end_ns, Method.ROLE, share)


def _whole(count: float | None) -> int | None:
    return None if count is None else round(count)


# Long enough for a share of many steps, short enough for a change of the load.
LEAST_SECONDS = 5.0


class LeaderShare:
    """Follows the account of a leader that is on this node; `prefill_share` is None before any."""

    def __init__(self) -> None:
        self.prefill_share: float | None = None
        self._before: dict[Phase, float] | None = None

    def take(self, gpu_seconds: Mapping[tuple[Role, Phase], float]) -> None:
        """Take what the leader has used up to now; less than `LEAST_SECONDS` more is waited for."""
        now = dict.fromkeys(Phase, 0.0)
        for (_, phase), seconds in gpu_seconds.items():
            now[phase] += seconds
        before = self._before
        if before is None or any(now[phase] < before[phase] for phase in Phase):
            self._before = now
            return
        used = {phase: now[phase] - before[phase] for phase in Phase}
        total = sum(used.values())
        if total >= LEAST_SECONDS:
            self.prefill_share = used[Phase.PREFILL] / total
            self._before = now


PATIENCE_NS = 10_000_000_000
"""How long the source in use may be silent before a worse one takes over.

Steps come with a heartbeat a second, pages are looked at once a second, and an engine that loads
or captures graphs may stall for some seconds without being lost.
"""

BEST_FIRST = tuple(method for method in Method if method is not Method.NONE)

LastReceived = Mapping[Method, int]
"""When something was last received from each source, in nanoseconds of CLOCK_MONOTONIC."""


def choose_source(current: Method, received: LastReceived, now_ns: int) -> Method:
    """Return the source to book an engine by from now on.

    A better source than the one in use is taken as soon as it reports; a worse one when the one
    in use has been silent for `PATIENCE_NS`. Without any that reports, it stays as it is.
    """
    fresh = {method for method, t_ns in received.items() if now_ns - t_ns <= PATIENCE_NS}
    return next((method for method in BEST_FIRST if method in fresh), current)
