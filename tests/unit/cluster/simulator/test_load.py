from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from disagg_cluster.simulator.engine.batch import Request
from disagg_cluster.simulator.load import (
    Arrivals,
    Constant,
    Lengths,
    LoadOverTime,
    Mix,
    Shifting,
    TraceError,
    parse_trace,
    read_trace,
)

TRACE = Path(__file__).parents[3] / "data" / "traces" / "azure2023_conv__60s.csv"
HEADER = "t_s,requests_per_s,prompt_tokens_per_s,output_tokens_per_s,prefill_share\n"


def drawn(shape: LoadOverTime, seconds: float, lengths: Lengths | None = None) -> list[Request]:
    arrivals = Arrivals(shape, lengths or Lengths(), random.Random(1), 0)
    now_ns, requests = 0, []
    while now_ns < seconds * 1e9:
        now_ns, request = arrivals.draw(now_ns)
        if request is not None:
            requests.append(request)
    return requests


def test_a_constant_load_arrives_randomly_at_its_rate() -> None:
    requests = drawn(Constant(Mix(5, 100, 10)), 2000)
    gaps = [(b.arrived_ns - a.arrived_ns) / 1e9 for a, b in pairwise(requests)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5

    assert mean == pytest.approx(0.2, rel=0.05)
    assert spread == pytest.approx(0.2, rel=0.05)


def test_a_zero_load_brings_no_requests() -> None:
    assert drawn(Constant(Mix(0, 0, 0)), 100) == []


def test_lengths_keep_their_mean_and_spread_around_it() -> None:
    requests = drawn(Constant(Mix(10, 1000, 100)), 1000, Lengths(0.8, 0.5))
    prompts = [request.prompt_tokens for request in requests]
    outputs = [request.output_tokens for request in requests]

    assert sum(prompts) / len(prompts) == pytest.approx(1000, rel=0.05)
    assert sum(outputs) / len(outputs) == pytest.approx(100, rel=0.05)
    assert min(prompts) < 300 < 3000 < max(prompts)


def test_very_long_prompts_leave_all_other_requests_as_they_are() -> None:
    usual = Lengths(0.5, 0.5, reuse_ratio=0.3)
    shape = Constant(Mix(5, 1000, 100))
    without = drawn(shape, 200, usual)
    requests = drawn(shape, 200, replace(usual, giant_ratio=0.1, giant_tokens=50_000))

    others = [
        (one, other)
        for one, other in zip(requests, without, strict=True)
        if one.prompt_tokens != 50_000
    ]

    assert 0.8 * len(requests) < len(others) < 0.95 * len(requests)
    assert all(one == other for one, other in others)


def test_a_share_of_the_requests_has_a_common_prefix() -> None:
    lengths = Lengths(0.5, 0, reuse_ratio=0.25, prefixes=4, prefix_tokens=200)
    requests = drawn(Constant(Mix(10, 300, 10)), 1000, lengths)
    alike = [request for request in requests if request.prefix is not None]

    assert len(alike) / len(requests) == pytest.approx(0.25, rel=0.1)
    assert {r.prefix.identity for r in alike if r.prefix} == {0, 1, 2, 3}
    assert all(request.prompt_tokens > 200 for request in alike)


def test_a_shifting_load_passes_through_both_mixes() -> None:
    high, low = Mix(8, 4000, 10), Mix(2, 1000, 160)
    shape = Shifting(high, low, period_seconds=100)
    at_high, at_low, between = shape.rate(25), shape.rate(75), shape.rate(0)

    assert at_high.prompt_tokens == pytest.approx(4000)
    assert at_low.output_tokens == pytest.approx(160)
    assert between.requests_per_second == pytest.approx(4)
    assert between.output_tokens == pytest.approx(40)


def test_a_trace_returns_its_rows_and_repeats() -> None:
    trace = read_trace(TRACE)

    assert (trace.step_seconds, trace.seconds) == (60.0, 58 * 60.0)
    first = trace.rate(59.9)
    assert first.requests_per_second == pytest.approx(3.18333)
    assert first.prompt_tokens == pytest.approx(2866.65 / 3.18333)
    assert first.output_tokens == pytest.approx(737.15 / 3.18333)
    assert trace.rate(60).requests_per_second == pytest.approx(4.41667)
    assert trace.rate(trace.seconds + 1) == trace.rate(1)


def test_requests_of_a_trace_carry_its_tokens() -> None:
    trace = read_trace(TRACE)
    requests = drawn(trace, trace.seconds)
    tokens = sum(mix.requests_per_second * mix.prompt_tokens for mix in trace.mixes) * 60

    assert len(requests) == pytest.approx(trace.mean_requests_per_second * trace.seconds, rel=0.05)
    assert sum(request.prompt_tokens for request in requests) == pytest.approx(tokens, rel=0.05)


def test_a_scaled_trace_has_another_rate_and_the_same_lengths() -> None:
    trace = read_trace(TRACE)
    scaled = trace.scaled(1.0)

    assert scaled.mean_requests_per_second == pytest.approx(1.0)
    assert scaled.rate(0).prompt_tokens == trace.rate(0).prompt_tokens


def test_a_step_without_requests_is_idle() -> None:
    trace = parse_trace(HEADER + "0,0,0,0,\n60,1,10,5,0.6\n")

    assert trace.rate(0) == Mix(0, 0, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "two rows"),
        (HEADER + "0,1,1,1,\n", "two rows"),
        (HEADER + "0,1,1,1,\n60,x,1,1,\n", "line 3: requests_per_s is 'x', no number"),
        (HEADER + "0,1,1,1,\n60,-1,1,1,\n", "line 3: requests_per_s is -1"),
        (HEADER + "0,1,1,1,\n60,nan,1,1,\n", "line 3: requests_per_s is nan"),
        (HEADER + "0,1,1,1,\n60,1,1,1,\n150,1,1,1,\n", "line 4: .* not equally long"),
        (HEADER + "60,1,1,1,\n0,1,1,1,\n", "not equally long"),
        ("a,b\n1,2\n3,4\n", "t_s is None"),
    ],
)
def test_an_invalid_trace_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(TraceError, match=why):
        parse_trace(text)


def test_an_invalid_trace_file_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("nothing")

    with pytest.raises(TraceError, match=r"bad\.csv"):
        read_trace(path)
