from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_exporter.landing.latency import mean, merged, observed_since, quantile
from disagg_exporter.landing.served import ServedHistory
from disagg_exporter.model import Phase, Role, Snapshot, TokenAccount
from disagg_exporter.model.serving import (
    Histogram,
    RequestAccount,
    RequestAccounts,
    RequestSource,
)

TTFT = Histogram((0.1, 0.2, 0.4), (0.0, 90.0, 100.0, 100.0), 18.0)


def at(seconds: int, requests: float, tokens: int, ttft: Histogram | None = None) -> Snapshot:
    account = RequestAccount(
        RequestSource.FRONTEND, "llama", "", arrivals=requests, time_to_first_token=ttft
    )
    worse = RequestAccount(RequestSource.ENGINE, "llama", "", arrivals=requests * 9)
    return Snapshot(
        seconds * 10**9,
        0.0,
        0,
        tokens=(TokenAccount(Role.DECODE, Phase.DECODE, "llama", "", tokens),),
        requests=RequestAccounts((worse, account)),
    )


def test_rates_are_of_the_last_minute_by_the_best_source() -> None:
    history = ServedHistory()
    for second in range(0, 131):
        history.remember(at(second, second * 3.0, second * 50))

    last = history.rates[-1]
    assert last.requests_per_second == pytest.approx(3.0)
    assert last.output_tokens_per_second == pytest.approx(50.0)
    assert last.first_token_p95_seconds is None
    assert len(history.rates) == 13


def test_a_counter_that_begins_anew_is_not_known_and_no_negative_rate() -> None:
    history = ServedHistory()
    history.remember(at(0, 100.0, 100))
    history.remember(at(10, 5.0, 200))

    assert history.rates[-1].requests_per_second is None
    assert history.rates[-1].output_tokens_per_second == 10.0


def test_waits_are_those_between_two_moments() -> None:
    history = ServedHistory()
    history.remember(at(0, 0.0, 0, replace(TTFT, counts=(0.0,) * 4, sum=0.0)))
    history.remember(at(10, 0.0, 0, TTFT))

    assert history.rates[-1].first_token_p95_seconds == pytest.approx(0.3)


def test_quantiles_as_prometheus_estimates_them() -> None:
    assert quantile(TTFT, 0.95) == pytest.approx(0.3)
    assert quantile(TTFT, 0.5) == pytest.approx(0.1 + 0.1 * 50 / 90)
    assert quantile(Histogram((0.1,), (0.0, 5.0), 50.0), 0.5) == 0.1
    assert quantile(Histogram((0.1,), (0.0, 0.0), 0.0), 0.5) is None
    assert (quantile(None, 0.5), mean(None), mean(TTFT)) == (None, None, 0.18)


def test_histograms_of_several_are_one_and_counters_that_fell_are_none() -> None:
    coarse = Histogram((0.2,), (10.0, 20.0), 5.0)

    assert merged([coarse, TTFT]) == Histogram((0.2,), (100.0, 120.0), 23.0)
    assert merged([]) is None
    assert observed_since(coarse, TTFT) is None
    assert observed_since(TTFT, replace(TTFT, counts=(1.0, 91.0, 101.0, 101.0))) is None


def test_what_was_not_known_at_first_is_told_since_it_was() -> None:
    history = ServedHistory()
    history.remember(Snapshot(0, 0.0, 0))
    history.remember(at(10, 0.0, 0, replace(TTFT, counts=(0.0,) * 4, sum=0.0)))
    history.remember(at(20, 30.0, 500, TTFT))

    last = history.rates[-1]
    assert (last.requests_per_second, last.output_tokens_per_second) == (3.0, 50.0)
    assert last.first_token_p95_seconds == pytest.approx(0.3)


def test_waits_that_only_both_pools_together_tell_are_told_beside_the_engines_requests() -> None:
    history = ServedHistory()
    for seconds, waits in ((0, replace(TTFT, counts=(0.0,) * 4, sum=0.0)), (10, TTFT)):
        engines = RequestAccount(RequestSource.ENGINE, "llama", "", arrivals=seconds * 2.0)
        pools = RequestAccount(RequestSource.POOLS, "llama", "", time_to_first_token=waits)
        requests = RequestAccounts((pools, engines))
        history.remember(Snapshot(seconds * 10**9, 0.0, 0, requests=requests))

    last = history.rates[-1]
    assert last.requests_per_second == 2.0
    assert last.first_token_p95_seconds == pytest.approx(0.3)
