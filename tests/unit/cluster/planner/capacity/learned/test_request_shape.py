"""Request shapes: how they are measured, and the mixes that result."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.learned.cost_families import FAMILIES, CostFamilies
from disagg_cluster.planner.capacity.learned.length_dispersion import dispersion_of
from disagg_cluster.planner.capacity.learned.request_shape import RequestShape
from disagg_cluster.planner.capacity.learned.shape_reader import read_shapes
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.prometheus.prometheus_api import Samples

_LIKE = RequestMix(1.0, 1.0, 1.0, cached_tokens=100.0)
_MODEL = {"model_name": "llama", "engine_namespace": "chat"}


def test_the_measured_context_overrides_the_one_from_means() -> None:
    """Two kinds: 20,000 tokens with outputs of 100, and 1,000 with 2,000; half of each."""
    held = (100 * 20_050 + 2000 * 2000) / 2100
    mix = RequestShape(1e9, 0.8, 0.8, held).of(_LIKE, 10_500.0, 1050.0)

    assert (mix.prompt_dispersion, mix.output_dispersion) == pytest.approx((0.8, 0.8))
    assert mix.cached_tokens == 100.0
    expected = RequestMix(
        1.0, 10_500.0, 1050.0, 100.0, 1.0, 0.8, 0.8, context_factor=mix.context_factor
    )
    assert expected.context_tokens == pytest.approx(held)
    assert mix.context_factor < 0.3


def test_few_requests_have_little_weight_and_none_has_no_weight() -> None:
    def factor(requests: float) -> float:
        return RequestShape(requests, 5.0, 5.0, 1000.0).of(_LIKE, 10_000.0, 1000.0).context_factor

    assert factor(1e9) < factor(50.0) < factor(5.0) < 1.0
    assert RequestShape(0.0, 5.0, 5.0, 1000.0).of(_LIKE, 10_000.0, 1000.0) == _LIKE
    assert RequestShape(1e9).of(_LIKE, 10_000.0, 1000.0) == _LIKE


measured = st.none() | st.floats(0.0, 1e12)
lengths = st.floats(0.0, 1e300)


@given(st.floats(0.0, 1e12), measured, measured, measured, lengths, lengths)
def test_any_measurement_gives_a_valid_mix(
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


class _Answering:
    """Answers each expression that contains all words of a key."""

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
            for words, samples in self._answers.items()
            if all(word in expr for word in words)
            for labels, value in samples
        ]


def families(*engines: tuple[str, str]) -> CostFamilies:
    """Engines by name and role, each with a cache of 10,000 tokens."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in FAMILIES}
    for name, role in engines:
        of = {"cluster": "east", "node": "n", "engine": name}
        samples["disagg_engine_info"].append(({**of, "role": role, "model_name": "llama"}, 1.0))
        samples["disagg_gpu_assignment_info"].append(
            ({**of, "gpu": name, "engine_namespace": "chat"}, 1.0)
        )
        samples["disagg_gpu_info"].append(
            ({"cluster": "east", "node": "n", "gpu": name, "gpu_name": "H100"}, 1.0)
        )
        samples["disagg_engine_kv_cache_tokens"].append((of, 10_000.0))
    return CostFamilies({name: list(of) for name, of in samples.items()})


def buckets(source: str, *below: tuple[str, float]) -> list[tuple[dict[str, str], float]]:
    return [({**_MODEL, "source": source, "le": bound}, count) for bound, count in below]


def test_a_shape_comes_from_the_frontend_and_the_caches_of_decode_engines() -> None:
    engines = {name: {"cluster": "east", "node": "n", "engine": name} for name in ("p", "d", "e")}
    prometheus = _Answering(
        {
            ("disagg_request_prompt_tokens_bucket",): [
                *buckets("frontend", ("100.0", 50.0), ("1000.0", 50.0), ("+Inf", 100.0)),
                *buckets("engine", ("100.0", 7.0), ("+Inf", 7.0)),
                *buckets("frontend", ("many", 9.0), ("NaN", 9.0), ("", 9.0), ("-1", 9.0)),
            ],
            ("disagg_request_prompt_tokens_sum",): [
                ({**_MODEL, "source": "frontend"}, 90_000.0),
                ({**_MODEL, "source": "engine"}, 1e9),
            ],
            ("disagg_request_output_tokens_bucket",): [
                *buckets("frontend", ("100.0", 0.0), ("+Inf", 0.0)),
                *buckets("engine", ("100.0", 0.0), ("200.0", 60.0), ("+Inf", 60.0)),
                *buckets("router", ("200.0", 20.0), ("+Inf", 20.0)),
            ],
            ("disagg_request_output_tokens_sum",): [
                ({**_MODEL, "source": "engine"}, 9000.0),
                ({**_MODEL, "source": "router"}, 2000.0),
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
    cost_families = families(("p", "prefill"), ("d", "decode"), ("e", "decode"))

    found = read_shapes(prometheus, cost_families, "east", 900.0)

    shape = found["llama", "chat"]
    assert shape.requests == 100.0
    assert shape.prompt_dispersion == dispersion_of(
        [100.0, 1000.0, math.inf], [50.0, 0.0, 50.0], 90_000.0
    )
    # The frontend reports no outputs: others do.
    assert shape.output_dispersion == dispersion_of(
        [100.0, 200.0, math.inf], [0.0, 80.0, 0.0], 11_000.0
    )
    assert shape.context_tokens == pytest.approx(6000 / 3)


def test_engines_with_empty_caches_give_no_context() -> None:
    idle = {("avg_over_time",): [({"cluster": "east", "node": "n", "engine": "d"}, 0.0)]}

    assert read_shapes(_Answering({}), families(("d", "decode")), "east", 0.0) == {}
    found = read_shapes(_Answering(idle), families(("d", "decode")), "east", 0.0)
    assert found["llama", "chat"] == RequestShape()


def test_an_engine_that_was_one_of_prefill_gives_the_context_of_its_decoding_alone() -> None:
    """Its series of both roles have values within the window."""

    class ByRole(_Answering):
        def query_range(
            self, expr: str, start: float, end: float, step: float, deadline: float = 60.0
        ) -> list[Samples]:
            wanted = re.search(r'role=~"([a-z|]+)"', expr)
            roles = {"prefill": (0.4, 2.0), "decode": (0.5, 50.0)}
            values = [
                both for role, both in roles.items() if not wanted or role in wanted[1].split("|")
            ]
            usage, running = (sum(each) for each in zip(*values, strict=True))
            engine = {"cluster": "east", "node": "n", "engine": "d"}
            for name, value in (("kv_cache_usage_ratio", usage), ("requests{", running)):
                if f"disagg_engine_{name}" in expr:
                    return [Samples(engine, ((start, value),))]
            return []

    found = read_shapes(ByRole({}), families(("d", "decode")), "east", 900.0)

    assert found["llama", "chat"].context_tokens == pytest.approx(5000 / 50)


def test_mixed_engines_whose_requests_share_a_prefix_hold_it_once() -> None:
    """Else no context would be priced: 50 requests hold 8,000 tokens together, not each."""
    engine = {"cluster": "east", "node": "n", "engine": "m"}
    found = read_shapes(
        _Answering(
            {
                ("disagg_request_prompt_tokens_bucket",): buckets("engine", ("+Inf", 1e6)),
                ("disagg_engine_kv_cache_usage_ratio",): [(engine, 0.5)],
                ("disagg_engine_requests", 'state="running"'): [(engine, 50.0)],
            }
        ),
        families(("m", "mixed")),
        "east",
        900.0,
    )["llama", "chat"]
    mix = found.of(RequestMix(1.0, 1.0, 1.0, cached_tokens=8000.0), 500.0, 300.0)

    assert found.context_tokens == pytest.approx(5000 / 50)
    assert mix.context_factor < 0.1
