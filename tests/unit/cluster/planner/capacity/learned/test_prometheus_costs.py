from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from disagg_cluster.planner.capacity.learned.cost_families import FAMILIES, CostKey
from disagg_cluster.planner.capacity.learned.learned_costs import LearnedCosts
from disagg_cluster.planner.capacity.learned.prometheus_costs import PrometheusCosts
from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.prometheus.prometheus_api import Samples
from disagg_exporter.metrics.reference import reference
from disagg_exporter.model import Role

H100 = "NVIDIA H100 80GB HBM3"
Page = Mapping[str, list[tuple[dict[str, str], float]]]


class Scripted:
    """Answers with the last samples of some pages."""

    def __init__(self, *pages: Page) -> None:
        self._pages = pages
        self.asked: list[str] = []

    def query_range(
        self,
        expr: str,
        start_seconds: float,
        end_seconds: float,
        step_seconds: float,
        deadline_seconds: float = 60.0,
    ) -> list[Samples]:
        """As the real client, at one instant."""
        assert start_seconds == end_seconds
        self.asked.append(expr)
        name = expr.partition("{")[0]
        return [
            Samples(labels, ((start_seconds, value),))
            for page in self._pages
            for labels, value in page.get(name, ())
        ]


def page(
    node: str = "n1",
    role: str = "decode",
    gpus: int = 1,
    model: str = "llama",
    gpu_name: str = H100,
    **families: dict[str, float],
) -> Page:
    """The families of one engine: its facts, and `families` by short name and label value."""
    of = {"cluster": "c", "node": node}
    engine = {**of, "engine": f"{node}-e"}
    labels = {"prefill": "step_tokens", "decode": "batch", "step": "point", "error": "point"}
    names = {
        "prefill": "disagg_engine_prefill_curve_tokens_per_second",
        "decode": "disagg_engine_decode_curve_seconds",
        "step": "disagg_engine_step_cost_seconds",
        "error": "disagg_engine_step_cost_error_seconds",
    }
    found = {
        "disagg_engine_info": [({**engine, "role": role, "model_name": model}, 1.0)],
        "disagg_gpu_assignment_info": [
            ({**engine, "gpu": f"g{n}", "engine_namespace": "chat"}, 1.0) for n in range(gpus)
        ],
        "disagg_gpu_info": [
            ({**of, "gpu": f"g{n}", "gpu_name": gpu_name}, 1.0) for n in range(gpus)
        ],
    }
    for short, values in families.items():
        if short in names:
            found[names[short]] = [
                ({**engine, labels[short]: size}, value) for size, value in values.items()
            ]
        else:
            found[f"disagg_engine_{short}"] = [
                ({**engine, "state": state}, value) for state, value in values.items()
            ]
    return found


def read(*pages: Page) -> dict[CostKey, LearnedCosts | UndecidedCapacity]:
    return PrometheusCosts(Scripted(*pages), cluster="c").read(1000.0)


def test_engines_are_pooled_by_kind() -> None:
    curve = {"1": 0.007, "64": 0.012}
    slow = {size: 2 * seconds for size, seconds in curve.items()}

    found = read(
        page("n1", decode=curve),
        page("n2", decode=slow),
        page("n3", decode=curve),
        page("n4", decode=curve, gpus=2),
        page("n5", decode=curve, model="qwen"),
        page("n6", decode=curve, role="mixed"),
        page("n7", decode=curve, gpu_name="NVIDIA L40S"),
    )

    usual = CostKey("llama", "chat", Role.DECODE, H100, 1)
    assert len(found) == 5
    pool = found[usual]
    assert isinstance(pool, LearnedCosts)
    assert pool.step_seconds(0, 0, 64, 0) == 0.012
    assert (pool.decode and pool.decode.engines) == 3
    assert CostKey("llama", "chat", Role.DECODE, H100, 2) in found


def test_rates_become_times_and_the_cost_model_prices_mixed_steps() -> None:
    (costs,) = read(
        page(
            role="mixed",
            prefill={"1000": 20_000.0},
            step={
                "empty": 0.005,
                "prefill_1024": 0.05,
                "decode_64": 0.012,
                "prefill_1024_decode_64": 0.0627,
            },
            error={"empty": 0.0, "prefill_1024": 0.0, "decode_64": 0.001974},
            kv_cache_tokens={"": 100_000.0},
            kv_cache_usage_ratio={"": 0.3},
            requests={"running": 20.0, "waiting": 5.0},
        )
    ).values()

    assert isinstance(costs, LearnedCosts)
    assert costs.step_seconds(1000, 500, 0, 0) == pytest.approx(0.05)
    assert costs.step_seconds(1000, 500, 64, 64 * 1500) == pytest.approx(
        1.1 * (0.05 + 0.012 - 0.005)
    )
    assert costs.context_tokens == 1500
    assert costs.shape.kv_tokens == 100_000
    assert costs.relative_error == pytest.approx(0.1)


def test_the_limits_that_an_engine_reports_bound_its_steps() -> None:
    """Its cost model prices larger steps than it runs; without limits those are what it may run."""

    def costs_of(**limits: float) -> LearnedCosts:
        engine = page(
            role="mixed",
            prefill={"512": 20_000.0, "4096": 40_000.0},
            decode={"1": 0.007, "16": 0.008},
            step={"prefill_4096": 0.1, "decode_16": 0.008, "decode_256": 0.03},
        )
        of = {"cluster": "c", "node": "n1", "engine": "n1-e"}
        reported = {f"disagg_engine_{name}": [(of, each)] for name, each in limits.items()}
        (found,) = read({**engine, **reported}).values()
        assert isinstance(found, LearnedCosts)
        return found

    bound = costs_of(max_num_batched_tokens=2048.0, max_num_seqs=32.0).shape
    free = costs_of().shape

    assert (bound.max_num_batched_tokens, bound.max_num_seqs) == (2048, 32)
    assert (free.max_num_batched_tokens, free.max_num_seqs) == (4096, 256)


def test_one_request_that_has_just_begun_does_not_make_usual_contexts_unseen() -> None:
    """At night an engine often runs one: contexts of then are no measure of its learned steps."""
    (costs,) = read(
        page(
            decode={"1": 0.007, "64": 0.012},
            kv_cache_tokens={"": 100_000.0},
            kv_cache_usage_ratio={"": 0.0002},
            requests={"running": 1.0, "waiting": 0.0},
        )
    ).values()

    assert isinstance(costs, LearnedCosts)
    assert costs.step_seconds(0, 0, 64, 64 * 1500) == 0.012


@pytest.mark.parametrize(
    "odd",
    [
        {"decode": {"sixty": 0.01}},
        {"decode": {"1": math.nan, "2": math.inf, "3": -1.0, "0": 1.0}},
        {"prefill": {"100": 0.0}},
        {"step": {"prefill_many": 0.1, "decode_": 0.1, "": 0.1}},
        {},
    ],
)
def test_an_engine_without_valid_points_is_undecided(odd: dict[str, dict[str, float]]) -> None:
    (found,) = read(page(**odd)).values()  # type: ignore[arg-type] # families only

    assert found == UndecidedCapacity("its only engine does not report its step times")


def test_an_engine_on_unknown_or_different_gpus_is_left_out() -> None:
    curve = {"1": 0.007}
    unlike = dict(page("n1", decode=curve, gpus=2))
    unlike["disagg_gpu_info"] = [
        *page("n1")["disagg_gpu_info"],
        ({"cluster": "c", "node": "n1", "gpu": "g1", "gpu_name": "NVIDIA L40S"}, 1.0),
    ]
    unknown = {**page("n2", decode=curve), "disagg_gpu_info": []}
    without = {**page("n3", decode=curve), "disagg_gpu_assignment_info": []}

    assert read(unlike, unknown, without, page("n4", role="none", decode=curve)) == {}


def test_without_engines_there_are_no_costs() -> None:
    assert read() == {}


def test_only_the_named_cluster_is_queried() -> None:
    prometheus = Scripted()
    PrometheusCosts(prometheus, cluster='a"b').read(0.0)

    of = '{cluster="a\\"b"}'
    *families, unseen = prometheus.asked
    assert families == [f"{name}{of}" for name in FAMILIES]
    assert unseen.count("disagg_gpu_info") == unseen.count(f"disagg_gpu_info{of}") == 2


def test_every_family_that_is_read_is_exported_by_nodes() -> None:
    assert [name for name in FAMILIES if f"`{name}`" not in reference()] == []


def test_costs_are_read_from_a_nodes_page() -> None:
    text = (Path(__file__).parents[5] / "data" / "golden_page.prom").read_text(encoding="utf-8")
    samples: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name].append((sample.labels, sample.value))

    found = read(samples)

    assert [(key.role, key.gpus) for key in found] == [(Role.DECODE, 1), (Role.PREFILL, 1)]
    decode, prefill = found.values()
    assert isinstance(decode, LearnedCosts)
    assert isinstance(prefill, LearnedCosts)
    assert decode.step_seconds(0, 0, 64, 0) == 0.015625
    assert decode.context_tokens == pytest.approx(700)
    assert prefill.step_seconds(256, 128, 0, 0) == pytest.approx(256 / 31_000)
    assert prefill.shape.max_num_batched_tokens == 512


def test_an_observed_batch_raises_the_default_limit() -> None:
    (usual, large) = (
        read(page(decode={"1": 0.007, batch: 0.02})).popitem()[1] for batch in ("100", "700")
    )

    assert isinstance(usual, LearnedCosts)
    assert isinstance(large, LearnedCosts)
    assert (usual.shape.max_num_seqs, large.shape.max_num_seqs) == (256, 700)
