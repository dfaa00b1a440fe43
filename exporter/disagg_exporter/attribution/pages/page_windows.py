"""Windows of work between two scrapes, for engines that report no steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from disagg_exporter.attribution.pages.prefill_shares import Counts, PhaseShares
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.window import EngineWindow, window
from disagg_exporter.model import (
    SECOND_NS,
    EnginePage,
    Histogram,
    Method,
    Role,
    ServingCounts,
    Split,
    WorkWindow,
)

MOST_HELD_SECONDS = 20.0
"""How long a rest may be held back; the accounting waits half a minute for a window."""

# The highest activity of an idle engine's devices, and of its processes.
_ACTIVE_RATIO = {Method.PAGE: 0.1, Method.PAGE_CPU: 0.3}

_HELD_METHODS = frozenset(_ACTIVE_RATIO)
"""Methods in which another process's activity looks like the engine's."""

ActiveSeconds = Callable[[int, int], float]
"""How long the engine's devices were active in (start_ns, end_ns], averaged over them."""


class FirstPrompts:
    """Decides whether a rest on an engine's page may be the computation of a first prompt.

    From the arrival of a prompt until its first step has ended, the page shows no running requests
    and counts nothing. It shows the same while another process uses the devices. So if they are
    active, a rest is not accepted at once: later pages show whose activity it was.
    """

    def __init__(self) -> None:
        self._strange = False

    def may_come(self, held_seconds: float, active_ratio: float, method: Method) -> bool:
        """Return whether to wait, `held_seconds` after the rest began, for a prompt to be counted.

        `active_ratio` is the activity since the last scrape. Activity for longer than
        `MOST_HELD_SECONDS` is another process's, until it ends.
        """
        if active_ratio < _ACTIVE_RATIO[method]:
            self._strange = False
            return False
        self._strange = self._strange or held_seconds >= MOST_HELD_SECONDS
        return not self._strange


class _Look(NamedTuple):
    """A page, and the CPU time of its engine's processes so far, if read."""

    page: EnginePage
    cpu_seconds: float | None


class PageWindows:
    """Makes windows of what one engine did between two scrapes of its page.

    Args:
        active_seconds: Used if the page does not report how long the engine was busy.
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
        """Return the window since the previous page; None for the first page, or the same again.

        A page of more or fewer data-parallel ranks than the previous one counts as the first.

        Also None while an engine that looks idle may be computing a prompt: the next window then
        begins where that rest began. `cpu_seconds` is the CPU time of the engine's processes so
        far, for `Method.PAGE_CPU`. `step_tokens` is the maximum tokens that each of its ranks
        computes in a step.
        """
        before, latest, look = self._before, self._latest, _Look(page, cpu_seconds)
        if latest is not None and page.t_ns <= latest.page.t_ns:
            return None
        self._latest = look
        self.shares.limit_steps(None if step_tokens is None else step_tokens * page.ranks)
        # What ranks that came or went had counted is not what was done in between.
        if before is None or latest is None or before.page.ranks != page.ranks:
            self._before = look
            return None
        try:
            did, lately = window(before.page, page), window(latest.page, page)
        except PageError:
            self._before = look
            return None
        busy_seconds = self._busy_seconds(did, method, before, look)
        resting = method in _HELD_METHODS and _rests(before.page, page, did)
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
            # It was busy for at most the time to its first tokens plus one scrape interval.
            waited_seconds = _first_token_seconds(before.page, page, did)
            if waited_seconds is not None:
                busy_seconds = min(busy_seconds, waited_seconds + lately.seconds)
        made = self._window(did, page, role, method, counts, busy_seconds)
        return replace(made, busy_ns=round(busy_seconds * SECOND_NS)) if held or resting else made

    def forget(self) -> None:
        """Treat the next page as the first: pages were missing, or the process changed."""
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
            busy_ns=round(busy_seconds * SECOND_NS) if reported else None,
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


def _rests(before: EnginePage, after: EnginePage, did: EngineWindow) -> bool:
    """Return whether nothing ran at either scrape, and nothing was counted in between."""
    requests = (before.running, before.waiting, after.running, after.waiting)
    known = before.running is not None and after.running is not None
    counted = did.reset or did.did_work or bool(did.external_tokens)
    return known and not any(requests) and not counted


def _timed(did: EngineWindow) -> float:
    """Return the busy time by the engine's own timers."""
    return min((did.prefill_seconds or 0.0) + (did.decode_seconds or 0.0), did.seconds)


def _counts(before: EnginePage, after: EnginePage, did: EngineWindow) -> Counts:
    """Return what the engine counted between two pages, by phase (A4).

    A prompt's first token is part of its prefill, but of decode if the request's KV was
    transferred. Ranks make their steps in parallel. If steps are not counted, each is assumed to
    generate a token for every running request.
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
    """Return the total time to first tokens between two pages; None if unknown."""
    old = ServingCounts() if did.reset else before.serving
    first, was = after.serving.time_to_first_token, old.time_to_first_token
    grown = sum(_buckets(was, first))
    if first is None or not grown:
        return None
    seconds = first.sum - (was.sum if was is not None else 0.0)
    return seconds if seconds > 0 else None


def _buckets(before: Histogram | None, after: Histogram | None) -> tuple[float, ...]:
    """Return the new observations in each bucket; empty if not exposed."""
    if after is None:
        return ()
    old = before.counts if before is not None else (0.0,) * len(after.counts)
    grown = [new - was for was, new in zip(old, after.counts, strict=True)]
    return tuple(max(upper - lower, 0.0) for lower, upper in pairwise([0.0, *grown]))


def _whole(count: float | None) -> int | None:
    return None if count is None else round(count)
