from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_exporter.landing.history import AccountHistory
from disagg_exporter.landing.served import ServedHistory
from disagg_exporter.landing.view import view_of
from disagg_exporter.model import EngineAccount, Method, Phase, Role, Snapshot, TokenAccount
from disagg_exporter.model.serving import (
    Histogram,
    RequestAccount,
    RequestAccounts,
    RequestSource,
)
from disagg_exporter.model.waits import LatencyTargets

TTFT = Histogram((0.1, 0.2, 0.4), (0.0, 90.0, 100.0, 100.0), 18.0)
STEPS = EngineAccount("decode-0", Role.DECODE, "llama", "", 0, Method.STEPS, {}, {})


def at(seconds: int, requests: float, tokens: int, ttft: Histogram | None = None) -> Snapshot:
    account = RequestAccount(
        RequestSource.FRONTEND, "llama", "", arrivals=requests, time_to_first_token=ttft
    )
    worse = RequestAccount(RequestSource.ENGINE, "llama", "", arrivals=requests * 9)
    return Snapshot(
        seconds * 10**9,
        0.0,
        0,
        engine_accounts=(STEPS,),
        tokens=(TokenAccount(Role.DECODE, Phase.DECODE, "llama", "", tokens),),
        requests=RequestAccounts((worse, account)),
    )


def test_rates_are_of_the_last_minute_by_the_best_source() -> None:
    history = ServedHistory(LatencyTargets())
    for second in range(0, 131):
        history.remember(at(second, second * 3.0, second * 50))

    last = history.rates[-1]
    assert last.arrivals_per_second == pytest.approx(3.0)
    assert last.output_tokens_per_second == pytest.approx(50.0)
    assert last.first_token_p95_seconds is None
    assert len(history.rates) == 13


def test_a_reset_counter_gives_no_rate() -> None:
    history = ServedHistory(LatencyTargets())
    history.remember(at(0, 100.0, 100))
    history.remember(at(10, 5.0, 200))

    assert history.rates[-1].arrivals_per_second is None
    assert history.rates[-1].output_tokens_per_second == 10.0


def test_tokens_that_no_engine_reports_have_no_rate_and_those_of_a_resting_one_are_0() -> None:
    """TensorRT-LLM reports output tokens and no prompt tokens; the ledger has both, at 0."""
    silent = replace(STEPS, method=Method.ROLE)
    for account, prompts in ((silent, None), (STEPS, 0.0)):
        history = ServedHistory(LatencyTargets())
        for second in (0, 10):
            tokens = tuple(
                TokenAccount(Role.MIXED, phase, "llama", "", count)
                for phase, count in ((Phase.PREFILL, 0), (Phase.DECODE, 100 + 50 * second))
            )
            history.remember(replace(at(second, 0.0, 0), engine_accounts=(account,), tokens=tokens))

        rates = history.rates[-1]
        assert (rates.prompt_tokens_per_second, rates.output_tokens_per_second) == (prompts, 50.0)


def test_waits_are_those_between_two_moments() -> None:
    history = ServedHistory(LatencyTargets())
    history.remember(at(0, 0.0, 0, replace(TTFT, counts=(0.0,) * 4, sum=0.0)))
    history.remember(at(10, 0.0, 0, TTFT))

    assert history.rates[-1].first_token_p95_seconds == pytest.approx(0.3)


def test_a_source_of_ends_only_gives_no_arrivals() -> None:
    history = ServedHistory(LatencyTargets())
    for seconds in (0, 10):
        told = RequestAccount(RequestSource.ROUTER, "llama", "", ends={"stop": 7.0 * seconds})
        requests = RequestAccounts((told,))
        history.remember(Snapshot(seconds * 10**9, 0.0, 0, requests=requests))

    assert history.rates[-1].arrivals_per_second is None


def test_counts_of_different_sources_are_not_subtracted() -> None:
    """The frontend is no longer read from 20 s on, and the engine counted ever since it started."""
    history = ServedHistory(LatencyTargets())
    for second in range(0, 50, 10):
        engine = RequestAccount(
            RequestSource.ENGINE, "llama", "", arrivals=50_000.0 + second, time_to_first_token=TTFT
        )
        frontend = replace(engine, source=RequestSource.FRONTEND, arrivals=float(second))
        accounts = (engine, frontend) if second < 20 else (engine,)
        history.remember(
            Snapshot(second * 10**9, 0.0, 0, requests=RequestAccounts(requests=accounts))
        )

    rates = [each.arrivals_per_second for each in history.rates]
    assert rates == [1.0, 1.0, 1.0, 1.0]
    assert all(each.first_token_p95_seconds is None for each in history.rates)


def told_by(second: int, **arrivals: float) -> Snapshot:
    """What these sources have counted by a second; each request waited 0.3 s."""
    accounts = tuple(
        RequestAccount(
            RequestSource(source), "llama", "", arrivals=count, time_to_first_token=waited(count)
        )
        for source, count in arrivals.items()
    )
    return Snapshot(second * 10**9, 0.0, 0, requests=RequestAccounts(requests=accounts))


def waited(requests: float) -> Histogram:
    return Histogram((0.25, 0.5), (0.0, requests, requests), 0.3 * requests)


def test_a_frontend_that_counted_nothing_does_not_hide_the_requests_of_engines() -> None:
    history = ServedHistory(LatencyTargets())
    for second in (0, 10, 20):
        history.remember(told_by(second, engine=1_000.0 + 3 * second, frontend=0.0))

    last = history.rates[-1]
    assert last.arrivals_per_second == 3.0
    assert last.first_token_p95_seconds == pytest.approx(0.4875)


def test_waits_at_mixed_engines_and_at_pools_of_a_model_are_shown_together() -> None:
    """Nineteen in twenty of its users are served by the pools, more slowly."""
    history = ServedHistory(LatencyTargets())
    for second in (0, 10):
        waits = {
            RequestSource.ENGINE: Histogram((0.5, 5.0), (second, second, second), 0.0),
            RequestSource.POOLS: Histogram((0.5, 5.0), (0.0, 19 * second, 19 * second), 0.0),
        }
        accounts = tuple(
            RequestAccount(source, "llama", "", time_to_first_token=waits[source])
            for source in waits
        )
        history.remember(
            Snapshot(second * 10**9, 0.0, 0, requests=RequestAccounts(requests=accounts))
        )

    assert history.rates[-1].first_token_p95_seconds == pytest.approx(0.5 + 4.5 * 18 / 19)


def slow(late: float) -> Histogram:
    """So many first tokens that took 0.2 s, and so many that took 5 s."""
    return Histogram((0.5, 10.0), (100.0, 100.0 + late, 100.0 + late), 20.0 + 5 * late)


def test_a_model_is_late_for_five_minutes_after_its_last_late_token() -> None:
    history = ServedHistory(LatencyTargets(ttft_seconds=0.5))
    late = {}
    for second in range(0, 700, 10):
        # 30 late ones from 100 s to 130 s.
        history.remember(at(second, 0.0, 0, slow(min(30.0, max(0.0, second - 100.0)))))
        late[second] = {model.model_name for model in history.late}

    assert (late[110], late[120], late[130]) == (set(), {"llama"}, {"llama"})
    assert (late[400], late[430]) == ({"llama"}, set())


def test_a_value_known_later_counts_from_then() -> None:
    history = ServedHistory(LatencyTargets())
    history.remember(Snapshot(0, 0.0, 0))
    history.remember(at(10, 0.0, 0, replace(TTFT, counts=(0.0,) * 4, sum=0.0)))
    history.remember(at(20, 30.0, 500, TTFT))

    last = history.rates[-1]
    assert (last.arrivals_per_second, last.output_tokens_per_second) == (3.0, 50.0)
    assert last.first_token_p95_seconds == pytest.approx(0.3)


def test_waits_of_both_pools_are_shown_with_the_engines_requests() -> None:
    history = ServedHistory(LatencyTargets())
    for seconds, waits in ((0, replace(TTFT, counts=(0.0,) * 4, sum=0.0)), (10, TTFT)):
        engines = RequestAccount(RequestSource.ENGINE, "llama", "", arrivals=seconds * 2.0)
        pools = RequestAccount(RequestSource.POOLS, "llama", "", time_to_first_token=waits)
        requests = RequestAccounts((pools, engines))
        history.remember(Snapshot(seconds * 10**9, 0.0, 0, requests=requests))

    last = history.rates[-1]
    assert last.arrivals_per_second == 2.0
    assert last.first_token_p95_seconds == pytest.approx(0.3)


def test_rates_of_a_stale_snapshot_are_not_shown() -> None:
    history, last = AccountHistory(), replace(at(10, 30, 100), fresh_until_ns=20 * 10**9)
    history.remember(at(0, 10, 50))
    history.remember(last)

    assert view_of(last, history, 20 * 10**9).served == history.served.rates != ()
    assert view_of(last, history, 21 * 10**9).served == ()
