"""Recent service to users: requests and tokens per second, token latencies and lateness."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

from disagg_exporter.landing.track import COARSE_STEP_SECONDS, KEPT_SECONDS
from disagg_exporter.model import Phase, Snapshot
from disagg_exporter.model.reported_tokens import phases_with_tokens
from disagg_exporter.model.serving import Histogram, RequestSource
from disagg_exporter.model.waits import (
    LATE_WINDOW_SECONDS,
    LatencyTargets,
    are_late,
    mean,
    merged,
    quantile,
    since,
)

T = TypeVar("T")

WINDOW_SECONDS = 60.0
_QUANTILE = 0.95


class ModelName(NamedTuple):
    """A model by its name and the namespace of its engines."""

    model_name: str
    namespace: str


class CountsOf(NamedTuple):
    """Key of what users' requests of a model met, as one source counts them."""

    model: ModelName
    source: RequestSource


class WaitsOf(NamedTuple):
    """Key of a wait histogram: all users of a model as a source counts them, or one engine."""

    model: ModelName
    engine: str = ""
    source: RequestSource | None = None


Key = TypeVar("Key", CountsOf, WaitsOf)


@dataclass(frozen=True, slots=True)
class ServedTotals:
    """Request counts up to now; None, or no entry, where nothing reports them.

    Tokens are over all models. Of each model there is what every source counts.
    """

    at_seconds: float
    arrivals: Mapping[CountsOf, float]
    prompt_tokens: float | None
    output_tokens: float | None
    first_token: Mapping[WaitsOf, Histogram]
    between_tokens: Mapping[WaitsOf, Histogram]


@dataclass(frozen=True, slots=True)
class ServedRates:
    """Rates of the last minute at one moment; None where unreported, or nothing happened."""

    at_seconds: float
    arrivals_per_second: float | None
    prompt_tokens_per_second: float | None
    output_tokens_per_second: float | None
    first_token_p95_seconds: float | None
    between_tokens_mean_seconds: float | None


def totals_of(snapshot: Snapshot) -> ServedTotals:
    """Return the totals of a snapshot."""
    accounts = {
        CountsOf(ModelName(each.model_name, each.engine_namespace), each.source): each
        for each in snapshot.requests.requests
    }
    tokens = _tokens_of(snapshot)
    between_tokens = {
        WaitsOf(ModelName(each.model_name, each.namespace), each.engine): waits
        for each in snapshot.engines
        if each.serving and (waits := each.serving.inter_token_latency)
    }
    return ServedTotals(
        at_seconds=snapshot.taken_ns / 1e9,
        arrivals={
            key: each.arrivals for key, each in accounts.items() if each.arrivals is not None
        },
        prompt_tokens=tokens.get(Phase.PREFILL),
        output_tokens=tokens.get(Phase.DECODE),
        first_token={
            WaitsOf(model, source=source): each.time_to_first_token
            for (model, source), each in accounts.items()
            if each.time_to_first_token is not None
        },
        between_tokens=between_tokens,
    )


def _tokens_of(snapshot: Snapshot) -> Mapping[Phase, int]:
    """Return the tokens of each phase; none of a phase that no engine reports."""
    statuses = {status.engine: status for status in snapshot.engines}
    tokens: Counter[Phase] = Counter()
    for account in snapshot.engine_accounts:
        tokens.update(dict.fromkeys(phases_with_tokens(account, statuses.get(account.engine)), 0))
    for each in snapshot.tokens:
        if each.tokens:  # else no engine may have reported any
            tokens[each.phase] += each.tokens
    return tokens


_IN_FRONT = (RequestSource.FRONTEND, RequestSource.ROUTER)


def of_best_sources(later: Mapping[Key, T], has_counted: Callable[[T], bool]) -> Mapping[Key, T]:
    """Return each model's counts by the best source that has counted any: a sum would count twice.

    One in front of the engines that has counted none is not on the way of these users. Engines that
    do prefill and decode, and separate pools, have different requests: both count.
    """
    models: dict[ModelName, list[Key]] = {}
    for key in later:
        models.setdefault(key.model, []).append(key)
    best: list[Key] = []
    for keys in models.values():
        front = [key for source in _IN_FRONT for key in keys if key.source is source]
        counting = [key for key in front if has_counted(later[key])]
        own = [key for key in keys if key.source not in _IN_FRONT]
        best += counting[:1] or own or front[:1]
    return {key: later[key] for key in best}


def users_arrivals(totals: ServedTotals) -> Mapping[CountsOf, float]:
    """Return the requests that arrived so far, by each model's best source."""
    return of_best_sources(totals.arrivals, lambda count: count > 0)


def arrivals_since(earlier: Sequence[ServedTotals], later: ServedTotals) -> float | None:
    """Return requests a second, of each model's best source since the oldest moment that has it.

    None if a counter was reset, or nothing was known before.
    """
    rates = []
    for key, after in users_arrivals(later).items():
        known = next((each for each in earlier if key in each.arrivals), None)
        if known is None:
            continue
        before = known.arrivals[key]
        if after < before:
            return None
        rates.append((after - before) / (later.at_seconds - known.at_seconds))
    return sum(rates) if rates else None


def rates_since(earlier: Sequence[ServedTotals], later: ServedTotals) -> ServedRates:
    """Return the recent rates, each since the oldest moment at which it was known.

    A counter that was reset gives None.
    """

    def rate(total: Callable[[ServedTotals], float | None]) -> float | None:
        after = total(later)
        known = next((each for each in earlier if total(each) is not None), None)
        if after is None or known is None:
            return None
        before, seconds = total(known), later.at_seconds - known.at_seconds
        return (after - before) / seconds if before is not None and after >= before else None

    first = first_tokens_since(earlier, later)
    between = waits_since([totals.between_tokens for totals in earlier], later.between_tokens)
    return ServedRates(
        at_seconds=later.at_seconds,
        arrivals_per_second=arrivals_since(earlier, later),
        prompt_tokens_per_second=rate(lambda totals: totals.prompt_tokens),
        output_tokens_per_second=rate(lambda totals: totals.output_tokens),
        first_token_p95_seconds=quantile(merged(first.values()), _QUANTILE),
        between_tokens_mean_seconds=mean(merged(between.values())),
    )


def waits_since(
    earlier: Sequence[Mapping[WaitsOf, Histogram]], later: Mapping[WaitsOf, Histogram]
) -> dict[WaitsOf, Histogram]:
    """Return what each counter observed since the oldest moment at which it was known."""
    known = {key: next((each[key] for each in earlier if key in each), None) for key in later}
    return {key: since(later[key], before) for key, before in known.items() if before is not None}


def first_tokens_since(
    earlier: Sequence[ServedTotals], later: ServedTotals
) -> dict[WaitsOf, Histogram]:
    """Return users' waits for first tokens by each model's best source, likewise."""
    best = of_best_sources(later.first_token, lambda waits: waits.total > 0)
    return waits_since([totals.first_token for totals in earlier], best)


def late_models(
    earlier: Sequence[ServedTotals], later: ServedTotals, targets: LatencyTargets
) -> frozenset[ModelName]:
    """Return the models whose users' tokens were late over the last five minutes."""
    first = first_tokens_since(earlier, later)
    between = waits_since([totals.between_tokens for totals in earlier], later.between_tokens)

    def of(model: ModelName, waits: Mapping[WaitsOf, Histogram]) -> Histogram | None:
        return merged(each for key, each in waits.items() if key.model == model)

    models = {key.model for key in chain(first, between)}
    return frozenset(
        model for model in models if are_late(of(model, first), of(model, between), targets)
    )


class ServedHistory:
    """Rates of the last minute, every ten seconds, for an hour; `late` models of five minutes.

    Args:
        targets: The latency targets.
    """

    def __init__(self, targets: LatencyTargets) -> None:
        self._targets = targets
        self._totals: deque[ServedTotals] = deque(maxlen=_kept(LATE_WINDOW_SECONDS))
        self._rates: deque[ServedRates] = deque(maxlen=_kept(KEPT_SECONDS))
        self.rates: tuple[ServedRates, ...] = ()
        self.late: frozenset[ModelName] = frozenset()

    def remember(self, snapshot: Snapshot) -> None:
        """Add a snapshot, if the last one added is old enough."""
        now_seconds = snapshot.taken_ns / 1e9
        last = self._totals[-1].at_seconds if self._totals else None
        if last is not None and now_seconds - last < COARSE_STEP_SECONDS:
            return
        totals = totals_of(snapshot)
        if self._totals:
            kept = tuple(self._totals)
            self._rates.append(rates_since(kept[-_kept(WINDOW_SECONDS) :], totals))
            self.rates = tuple(self._rates)
            self.late = late_models(kept, totals, self._targets)
        self._totals.append(totals)


def _kept(seconds: float) -> int:
    return round(seconds / COARSE_STEP_SECONDS)
