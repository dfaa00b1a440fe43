"""Requests of each model on this node, accumulated through engines that come, go and restart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from disagg_exporter.engine_pages.adapters import is_asked_at_once
from disagg_exporter.engine_pages.histograms import (
    DURATION_BOUNDS_SECONDS,
    FIRST_TOKEN_BOUNDS_SECONDS,
)
from disagg_exporter.model import (
    ENDINGS,
    PROMPT_TOKENS,
    REJECTIONS,
    EngineStatus,
    FrontCounts,
    Histogram,
    Part,
    PartAccount,
    PromptTokenAccount,
    RequestAccount,
    RequestAccounts,
    RequestSource,
    Role,
    ServingCounts,
    Total,
)
from disagg_exporter.serving.differences import added, difference
from disagg_exporter.serving.pools import PoolsWait

KEPT_MODELS = 64
"""Models beyond this many are not counted until one of the others is no longer reported."""

_FAILED = ("abort", "error")
_WHOLE = ("time_to_first_token", "duration")
_LENGTHS = ("prompt_tokens", "output_tokens")


class RequestOwner(NamedTuple):
    """Key by which requests are counted together."""

    model_name: str
    engine_namespace: str


@dataclass(slots=True)
class _Requests:
    """What one source has reported of the requests of one model."""

    totals: dict[Total, float] = field(default_factory=dict)
    rejections: dict[tuple[Role | None, str], float] = field(default_factory=dict)
    waiting: float | None = None
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def count(self, more: ServingCounts, totals: Iterable[Total]) -> None:
        """Add those of the totals that are reported."""
        for total in totals:
            if total in more.totals:
                self.totals[total] = self.totals.get(total, 0.0) + more.totals[total]

    def reject(self, more: ServingCounts, role: Role | None) -> None:
        """Add the rejections that engines of a role report (None: a frontend or router)."""
        for reason, total in REJECTIONS.items():
            if total in more.totals:
                key = role, reason
                self.rejections[key] = self.rejections.get(key, 0.0) + more.totals[total]

    def observe(self, more: ServingCounts, names: Iterable[str]) -> None:
        """Add those of the histograms that are reported."""
        for name in names:
            both = added(self.histograms.get(name), getattr(more, name))
            if both is not None:
                self.histograms[name] = both

    def wait(self, requests: float | None) -> None:
        """Add the requests that wait at one more program now, if it reports them."""
        if requests is not None:
            self.waiting = (self.waiting or 0.0) + requests

    def account(self, source: RequestSource, owner: RequestOwner) -> RequestAccount:
        """Return the account to display."""
        totals = self.totals
        return RequestAccount(
            source,
            *owner,
            arrivals=totals.get(Total.ARRIVED_REQUESTS),
            waiting=self.waiting,
            ends={reason: totals[total] for reason, total in ENDINGS.items() if total in totals},
            rejections=dict(self.rejections),
            time_to_first_token=self.histograms.get("time_to_first_token"),
            duration=self.histograms.get("duration"),
            prompt_tokens=self.histograms.get("prompt_tokens"),
            output_tokens=self.histograms.get("output_tokens"),
        )


@dataclass(slots=True)
class _Model:
    """The requests of one model: by source, by part, and both pools together.

    `fronts`: the frontends or routers being read that report it.
    """

    requests: dict[RequestSource, _Requests] = field(default_factory=dict)
    parts: dict[Part, Histogram] = field(default_factory=dict)
    prompt_tokens: defaultdict[tuple[Role, str], float] = field(
        default_factory=lambda: defaultdict(float)
    )
    first_token: PoolsWait = field(default_factory=lambda: PoolsWait(FIRST_TOKEN_BOUNDS_SECONDS))
    duration: PoolsWait = field(default_factory=lambda: PoolsWait(DURATION_BOUNDS_SECONDS))
    fronts: set[RequestSource] = field(default_factory=set)
    used_ns: int = 0

    def of(self, source: RequestSource) -> _Requests:
        """Return what a source has reported."""
        return self.requests.setdefault(source, _Requests())


class ModelRequests:
    """Accumulates what engines, routers and frontends report, by model; a new daemon starts at 0.

    Each request of a user is counted once: it arrives where it enters, at a prefill or mixed
    engine, and ends where its tokens are written, at a decode or mixed one, unless it failed
    before. Engines of an unknown role are left out: nothing says where their requests belong.
    """

    def __init__(self) -> None:
        self._models: dict[RequestOwner, _Model] = {}
        self._last_counts: dict[str, ServingCounts] = {}
        self._taken_ns = -1
        self._left_out_models = 0

    def ingest(
        self, engines: Iterable[EngineStatus], fronts: Collection[FrontCounts], now_ns: int
    ) -> None:
        """Add what all sources have counted by now, and forget sources that are not listed."""
        seen: dict[str, ServingCounts] = {}
        left_out: set[RequestOwner] = set()
        waits: dict[RequestOwner, dict[Part, Histogram]] = {}
        for status in engines:
            if status.serving is not None:
                owner = RequestOwner(status.model_name, status.namespace)
                more = self._increase(f"engine {status.engine}", status.serving, seen)
                if owner not in self._models and not status.model_name and not _counted(more):
                    continue  # its name may not be known yet
                model = self._model(owner, now_ns, left_out)
                if model is not None and more is not None:
                    self._count_engine(status, model, more)
                    _add_parts(waits.setdefault(owner, {}), status, more)
        for model in self._models.values():
            model.fronts.clear()
            for known in model.requests.values():
                known.waiting = None
        for front in fronts:
            for model_name, counts in front.by_model.items():
                more = self._increase(f"{front.source} {front.name} {model_name}", counts, seen)
                owner = RequestOwner(model_name, front.namespace)
                model = None if front.is_stale else self._model(owner, now_ns, left_out)
                if model is not None:
                    self._count_front(front.source, model, more)
                    model.of(front.source).wait(front.waiting.get(model_name))
        for owner, parts in waits.items():
            self._join(self._models[owner], parts, now_ns)
        self._last_counts, self._taken_ns = seen, now_ns
        self._left_out_models = len(left_out) + sum(front.left_out_models for front in fronts)

    def accounts(self) -> RequestAccounts:
        """Return all accounts; none from frontends and routers that are not read."""
        requests, parts, prompts = [], [], []
        for owner, model in self._models.items():
            shown = (RequestSource.ENGINE, *model.fronts)
            requests += [
                known.account(source, owner)
                for source, known in model.requests.items()
                if source in shown
            ]
            whole = model.first_token.whole, model.duration.whole
            if any(whole):
                pools = RequestAccount(
                    RequestSource.POOLS, *owner, time_to_first_token=whole[0], duration=whole[1]
                )
                requests.append(pools)
            parts += [PartAccount(part, *owner, waits) for part, waits in model.parts.items()]
            prompts += [
                PromptTokenAccount(role, origin, *owner, tokens)
                for (role, origin), tokens in model.prompt_tokens.items()
            ]
        return RequestAccounts(tuple(requests), tuple(parts), tuple(prompts), self._left_out_models)

    def _model(
        self, owner: RequestOwner, now_ns: int, left_out: set[RequestOwner]
    ) -> _Model | None:
        """Return a model's requests; None, and note it as left out, beyond `KEPT_MODELS`."""
        model = self._models.get(owner)
        if model is None:
            if len(self._models) >= KEPT_MODELS and not self._make_room():
                left_out.add(owner)
                return None
            model = self._models[owner] = _Model()
        model.used_ns = now_ns
        return model

    def _make_room(self) -> bool:
        """Forget the model unreported for longest, if any is; return whether one was."""
        oldest = min(self._models, key=lambda owner: self._models[owner].used_ns)
        if self._models[oldest].used_ns >= self._taken_ns:
            return False
        del self._models[oldest]
        return True

    def _increase(
        self, source_key: str, counts: ServingCounts, seen: dict[str, ServingCounts]
    ) -> ServingCounts | None:
        """Return what was counted since the last call; None if nothing new was read."""
        before, seen[source_key] = self._last_counts.get(source_key), counts
        if before is counts:
            return None
        return difference(before or ServingCounts(), counts)

    def _count_front(
        self, source: RequestSource, model: _Model, more: ServingCounts | None
    ) -> None:
        model.fronts.add(source)
        if more is not None:
            known = model.of(source)
            known.count(more, Total)
            known.reject(more, None)
            known.observe(more, (*_WHOLE, *_LENGTHS))

    def _count_engine(self, status: EngineStatus, model: _Model, more: ServingCounts) -> None:
        role = status.role
        if role not in (Role.PREFILL, Role.DECODE, Role.MIXED):
            return
        known = model.of(RequestSource.ENGINE)
        known.reject(more, role)
        if role is Role.PREFILL:
            known.count(more, (ENDINGS[reason] for reason in _FAILED))
        else:
            known.count(more, ENDINGS.values())
            known.observe(more, _LENGTHS)
        if role is not Role.DECODE:
            known.count(more, (Total.ARRIVED_REQUESTS,))
        if role is Role.MIXED or (role is Role.DECODE and is_asked_at_once(status.kind)):
            known.observe(more, _WHOLE)
        for origin, total in PROMPT_TOKENS.items():
            if total in more.totals:
                model.prompt_tokens[role, origin] += more.totals[total]

    def _join(self, model: _Model, parts: dict[Part, Histogram], now_ns: int) -> None:
        for part, waits in parts.items():
            model.parts[part] = added(model.parts.get(part), waits) or waits
        prefill = parts.get(Part.PREFILL)
        model.first_token.ingest(prefill, parts.get(Part.FIRST_DECODE), now_ns)
        model.duration.ingest(prefill, parts.get(Part.DECODE), now_ns)


def _counted(more: ServingCounts | None) -> bool:
    return more is not None and any(more.totals.values())


def _add_parts(parts: dict[Part, Histogram], status: EngineStatus, more: ServingCounts) -> None:
    """Add the waits of which an engine measures only a part."""
    if is_asked_at_once(status.kind):
        return
    clocked: dict[Part, Histogram | None] = {}
    if status.role is Role.PREFILL:
        clocked = {Part.PREFILL: more.time_to_first_token}
    elif status.role is Role.DECODE:
        clocked = {Part.FIRST_DECODE: more.time_to_first_token, Part.DECODE: more.duration}
    for part, waits in clocked.items():
        both = added(parts.get(part), waits)
        if both is not None:
            parts[part] = both
