"""What users got of late: requests and tokens a second, first tokens, time between tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from disagg_exporter.landing.latency import mean, merged, observed_since, quantile
from disagg_exporter.landing.track import COARSE_STEP_SECONDS, KEPT_SECONDS
from disagg_exporter.model import Phase, Snapshot
from disagg_exporter.model.serving import Histogram, RequestAccount, RequestSource

T = TypeVar("T")

WINDOW_SECONDS = 60.0
_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class ServedTotals:
    """What was counted of requests up to now, over all models; None where nobody tells."""

    at_seconds: float
    requests: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    first_token: Histogram | None
    between_tokens: Histogram | None


@dataclass(frozen=True, slots=True)
class ServedRates:
    """The last minute at one moment; None where nobody tells, or nothing happened."""

    at_seconds: float
    requests_per_second: float | None
    prompt_tokens_per_second: float | None
    output_tokens_per_second: float | None
    first_token_p95_seconds: float | None
    between_tokens_mean_seconds: float | None


def totals_of(snapshot: Snapshot) -> ServedTotals:
    """The totals of a snapshot; each of each model by the best source that tells it."""
    accounts = snapshot.requests.requests
    requests = _best(accounts, _requests)
    tokens = dict.fromkeys(Phase, 0)
    for each in snapshot.tokens:
        tokens[each.phase] += each.tokens
    between = (each.serving.inter_token_latency for each in snapshot.engines if each.serving)
    return ServedTotals(
        at_seconds=snapshot.taken_ns / 1e9,
        requests=sum(requests) if requests else None,
        prompt_tokens=tokens[Phase.PREFILL] if snapshot.tokens else None,
        output_tokens=tokens[Phase.DECODE] if snapshot.tokens else None,
        first_token=merged(_best(accounts, lambda account: account.time_to_first_token)),
        between_tokens=merged(each for each in between if each is not None),
    )


def _best(
    accounts: Sequence[RequestAccount], told_by: Callable[[RequestAccount], T | None]
) -> list[T]:
    """What is told of each model, by the best source that tells it: the sum would count twice.

    Of separate pools the engines count the requests, and only both together tell the waits.
    """
    best: dict[tuple[str, str], T] = {}
    order = list(RequestSource)
    for account in sorted(accounts, key=lambda account: order.index(account.source)):
        told = told_by(account)
        if told is not None:
            best.setdefault((account.model_name, account.engine_namespace), told)
    return list(best.values())


def _requests(account: RequestAccount) -> float | None:
    if account.arrivals is not None:
        return account.arrivals
    return sum(account.ends.values()) if account.ends else None


def rates_since(earlier: Sequence[ServedTotals], later: ServedTotals) -> ServedRates:
    """What happened of late, each since the oldest moment at which it was known.

    Of a counter that began anew nothing is known.
    """

    def rate(total: Callable[[ServedTotals], float | None]) -> float | None:
        after = total(later)
        known = next((each for each in earlier if total(each) is not None), None)
        if after is None or known is None:
            return None
        before, seconds = total(known), later.at_seconds - known.at_seconds
        return (after - before) / seconds if before is not None and after >= before else None

    def waits(of: Callable[[ServedTotals], Histogram | None]) -> Histogram | None:
        return observed_since(of(later), next(filter(None, map(of, earlier)), None))

    return ServedRates(
        at_seconds=later.at_seconds,
        requests_per_second=rate(lambda totals: totals.requests),
        prompt_tokens_per_second=rate(lambda totals: totals.prompt_tokens),
        output_tokens_per_second=rate(lambda totals: totals.output_tokens),
        first_token_p95_seconds=quantile(waits(lambda totals: totals.first_token), _QUANTILE),
        between_tokens_mean_seconds=mean(waits(lambda totals: totals.between_tokens)),
    )


class ServedHistory:
    """The rates of the last minute, every ten seconds, for an hour."""

    def __init__(self) -> None:
        self._totals: deque[ServedTotals] = deque(maxlen=round(WINDOW_SECONDS / 10))
        self._rates: deque[ServedRates] = deque(maxlen=round(KEPT_SECONDS / 10))
        self.rates: tuple[ServedRates, ...] = ()

    def remember(self, snapshot: Snapshot) -> None:
        """Take a snapshot, if the last that was taken is old enough."""
        now_seconds = snapshot.taken_ns / 1e9
        last = self._totals[-1].at_seconds if self._totals else None
        if last is not None and now_seconds - last < COARSE_STEP_SECONDS:
            return
        totals = totals_of(snapshot)
        if self._totals:
            self._rates.append(rates_since(tuple(self._totals), totals))
            self.rates = tuple(self._rates)
        self._totals.append(totals)
