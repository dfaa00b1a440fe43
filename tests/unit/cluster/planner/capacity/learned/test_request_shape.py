"""What is measured of requests, and what capacities make of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.learned.cost_families import FAMILIES, CostFamilies
from disagg_cluster.planner.capacity.learned.request_shape import RequestShape, dispersion_of
from disagg_cluster.planner.capacity.learned.shape_reader import read_shapes
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.prometheus.prometheus_api import Samples

_BOUNDS = [digit * 10.0**power for power in range(6) for digit in (1, 2, 5)]
_LIKE = RequestMix(1.0, 1.0, 1.0, cached_tokens=100.0)


def counts_of(lengths: Sequence[float]) -> list[float]:
    buckets = np.searchsorted(_BOUNDS, lengths)
    found: list[float] = np.bincount(buckets, minlength=len(_BOUNDS) + 1).astype(float).tolist()
    return found


@pytest.mark.parametrize("dispersion", [0.5, 1.0, 4.0])
def test_a_histogram_tells_how_much_lengths_differ(dispersion: float) -> None:
    spread = math.sqrt(math.log1p(dispersion))
    lengths = np.random.default_rng(1).lognormal(math.log(2000.0), spread, 200_000)

    told = dispersion_of([*_BOUNDS, math.inf], counts_of(lengths.tolist()))

    assert told == pytest.approx(lengths.var() / lengths.mean() ** 2, rel=0.25)


@given(st.lists(st.floats(1.0, 1e6), max_size=40))
def test_lengths_never_differ_by_less_than_nothing(lengths: list[float]) -> None:
    told = dispersion_of([*_BOUNDS, math.inf], counts_of(lengths))

    assert (told is None) == (not lengths)
    assert told is None or 0.0 <= told < math.inf


def test_of_nothing_but_an_unbounded_bucket_nothing_is_told() -> None:
    assert dispersion_of([math.inf], [5.0]) is None


def test_requests_hold_what_was_measured_whatever_their_means_tell() -> None:
    """Two kinds: 20,000 tokens and 100 written, 1,000 and 2,000; half of each."""
    held = (100 * 20_050 + 2000 * 2000) / 2100
    mix = RequestShape(1e9, 0.8, 0.8, held).of(_LIKE, 10_500.0, 1050.0)

    assert (mix.prompt_dispersion, mix.output_dispersion) == pytest.approx((0.8, 0.8))
    assert mix.cached_tokens == 100.0
    there = RequestMix(
        1.0, 10_500.0, 1050.0, 100.0, 1.0, 0.8, 0.8, context_factor=mix.context_factor
    )
    assert there.context_tokens == pytest.approx(held)
    assert mix.context_factor < 0.3


def test_few_requests_are_hardly_believed_and_none_not_at_all() -> None:
    def factor(requests: float) -> float:
        return RequestShape(requests, 5.0, 5.0, 1000.0).of(_LIKE, 10_000.0, 1000.0).context_factor

    assert factor(1e9) < factor(50.0) < factor(5.0) < 1.0
    assert RequestShape(0.0, 5.0, 5.0, 1000.0).of(_LIKE, 10_000.0, 1000.0) == _LIKE
    assert RequestShape(1e9).of(_LIKE, 10_000.0, 1000.0) == _LIKE


told = st.none() | st.floats(0.0, 1e12)


@given(st.floats(0.0, 1e12), told, told, told, st.floats(0.0, 1e300), st.floats(0.0, 1e300))
def test_whatever_is_measured_makes_requests_that_capacities_take(
    requests: float,
    prompts: float | None,
    outputs: float | None,
    context: float | None,
    prompt_tokens: float,
    output_tokens: float,
) -> None:
    shape = RequestShape(requests, prompts, outputs, context)

    mix = shape.of(_LIKE, prompt_tokens, output_tokens)

    assert 1 / 16 - 1e-9 <= mix.context_factor <= 16 + 1e-9
    assert max(mix.prompt_dispersion, mix.output_dispersion) <= 100


class _Told:
    """Answers each expression that has all words of a key in it."""

    def __init__(self, answers: dict[tuple[str, ...], list[tuple[dict[str, str], float]]]) -> None:
        self._answers = answers

    def query_range(
        self, expr: str, start: float, end: float, step: float, deadline: float = 60.0
    ) -> list[Samples]:
        assert start == end
        assert 'cluster="east"' in expr
        assert "[15m]" in expr
        return [
            Samples(labels, ((start, value),))
            for words, told in self._answers.items()
            if all(word in expr for word in words)
            for labels, value in told
        ]


def families(*engines: tuple[str, str]) -> CostFamilies:
    """Engines by name and role, each with a cache of 10,000 tokens."""
    told: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in FAMILIES}
    for name, role in engines:
        of = {"cluster": "east", "node": "n", "engine": name}
        told["disagg_engine_info"].append(({**of, "role": role, "model_name": "llama"}, 1.0))
        told["disagg_gpu_assignment_info"].append(
            ({**of, "gpu": name, "engine_namespace": "chat"}, 1.0)
        )
        told["disagg_gpu_info"].append(
            ({"cluster": "east", "node": "n", "gpu": name, "gpu_name": "H100"}, 1.0)
        )
        told["disagg_engine_kv_cache_tokens"].append((of, 10_000.0))
    return CostFamilies({name: list(of) for name, of in told.items()})


def buckets(source: str, *below: tuple[str, float]) -> list[tuple[dict[str, str], float]]:
    of = {"model_name": "llama", "engine_namespace": "chat", "source": source}
    return [({**of, "le": bound}, count) for bound, count in below]


def test_the_shape_is_read_of_the_frontend_and_of_the_caches_of_decode_engines() -> None:
    engines = {name: {"cluster": "east", "node": "n", "engine": name} for name in ("p", "d", "e")}
    prometheus = _Told(
        {
            ("disagg_request_prompt_tokens_bucket",): [
                *buckets("frontend", ("100.0", 50.0), ("1000.0", 50.0), ("+Inf", 100.0)),
                *buckets("engine", ("100.0", 7.0), ("+Inf", 7.0)),
                *buckets("frontend", ("many", 9.0), ("NaN", 9.0), ("", 9.0), ("-1", 9.0)),
            ],
            ("disagg_request_output_tokens_bucket",): [
                *buckets("frontend", ("100.0", 0.0), ("+Inf", 0.0)),
                *buckets("engine", ("100.0", 0.0), ("200.0", 60.0), ("+Inf", 60.0)),
            ],
            ("disagg_engine_kv_cache_usage_ratio",): [
                (engines["p"], 0.9),
                (engines["d"], 0.5),
                (engines["e"], 0.1),
            ],
            ("disagg_engine_requests", 'state="running"'): [
                (engines["p"], 1.0),
                (engines["d"], 2.0),
                (engines["e"], 1.0),
            ],
        }
    )
    told = families(("p", "prefill"), ("d", "decode"), ("e", "decode"))

    found = read_shapes(prometheus, told, "east", 900.0)

    shape = found["llama", "chat"]
    assert shape.requests == 100.0
    assert shape.prompt_dispersion == dispersion_of([100.0, 1000.0, math.inf], [50.0, 0.0, 50.0])
    # The frontend tells no outputs: engines do.
    assert shape.output_dispersion == dispersion_of([100.0, 200.0, math.inf], [0.0, 60.0, 0.0])
    assert shape.context_tokens == pytest.approx(6000 / 3)


def test_engines_that_hold_nothing_tell_nothing_of_contexts() -> None:
    idle = {("avg_over_time",): [({"cluster": "east", "node": "n", "engine": "d"}, 0.0)]}

    assert read_shapes(_Told({}), families(("d", "decode")), "east", 0.0) == {}
    found = read_shapes(_Told(idle), families(("d", "decode")), "east", 0.0)
    assert found["llama", "chat"] == RequestShape()
