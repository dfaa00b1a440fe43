"""From looks to what is shown: rates, latencies, pools, troubles, events, the planner's word."""

from __future__ import annotations

import pytest

from disagg_cluster.top.readings.parsing import reading_of
from disagg_cluster.top.readings.values import GpuReading, PlanReading, PoolKey
from disagg_cluster.top.screen.sections import planned
from disagg_cluster.top.view.planned import moves_of
from disagg_cluster.top.view.reading_history import ReadingHistory, events_between
from disagg_cluster.top.view.troubles import troubles_of
from support import top_looks as looks
from support import top_screens


def test_tokens_per_second_are_measured_between_two_readings() -> None:
    view = top_screens.one_gpu()

    assert view.engines[0].tokens_per_second == pytest.approx(4000)


def test_a_scraped_planner_is_not_listed_as_a_node() -> None:
    rows = looks.serving(2, 2, looks.AT, node="node-0")
    looks.add(rows, "disagg_build_info", 1, version="0.1.0", instance="planner:9848")

    assert [node.node for node in looks.viewed([(rows, looks.AT)]).nodes] == ["node-0"]


def test_nodes_of_the_same_name_in_two_clusters_are_two_nodes() -> None:
    def both(at: float) -> looks.Rows:
        rows: looks.Rows = {}
        for cluster in ("blue", "green"):
            for name, samples in looks.serving(1, 1, at, node="node-0").items():
                of = {"cluster": cluster}
                rows.setdefault(name, []).extend(
                    each._replace(labels={**each.labels, **of}) for each in samples
                )
        return rows

    view = looks.viewed([(both(at), at) for at in (looks.AT - 60, looks.AT)])

    assert [node.node for node in view.nodes] == ["blue/node-0", "green/node-0"]
    assert [(each.node, each.tokens_per_second) for each in view.engines] == [
        ("blue/node-0", 4000),
        ("green/node-0", 4000),
    ]
    assert {gpu.node for gpu in view.gpus} == {"blue/node-0", "green/node-0"}


def key_reads(nodes: int) -> int:
    """How often devices are looked up to build the view of so many nodes with 8 GPUs each."""
    rows = looks.together(
        *(looks.serving(8, 8, looks.AT, node=f"node-{number}") for number in range(nodes))
    )
    reads = []

    def key(gpu: GpuReading) -> tuple[str, str]:
        reads.append(gpu)
        return gpu.node, gpu.gpu

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GpuReading, "key", property(key))
        looks.viewed([(rows, looks.AT)])
    return len(reads)


def test_the_work_for_a_view_grows_with_the_fleet_and_not_with_its_square() -> None:
    assert 0 < key_reads(16) <= 2.2 * key_reads(8)


def test_a_single_reading_gives_no_rates() -> None:
    view = looks.viewed([(looks.serving(1, 1, looks.AT), looks.AT)])

    assert view.engines[0].tokens_per_second is None
    assert view.engines[0].first_token_p95_seconds is None


def test_pools_have_a_verdict_only_if_half_of_their_capacity_is_known() -> None:
    rows = looks.serving(8, 2, looks.AT)
    known = looks.viewed([(rows, looks.AT)]).models
    for sample_name in ("disagg_node_capacity_used_gpus", "disagg_node_capacity_known_gpus"):
        rows[sample_name] = [each._replace(value=each.value / 4) for each in rows[sample_name]]
    hardly = looks.viewed([(rows, looks.AT)]).models

    assert [model.verdicts for model in known] == [("prefill is short of GPUs",)]
    assert [model.verdicts for model in hardly] == [()]


def sliced() -> looks.Rows:
    """Seven slices of one GPU, each with a decode engine whose capacity is known."""
    rows = looks.a_node()
    for number in range(7):
        looks.add_gpu(rows, number, (0, 10, 10, 0, 0), engine=f"decode-{number}", role="decode")
        looks.add_engine(rows, f"decode-{number}", "decode", used=0.3)
    looks.add(rows, "disagg_node_role_gpus", 1.0, role="decode", gpu_name="NVIDIA H100")
    looks.add_pool(rows, "decode", 0.3, 1.0)
    return rows


def test_a_pool_of_slices_is_known_by_their_share_of_gpus() -> None:
    (model,) = looks.viewed([(sliced(), looks.AT)]).models

    (pool,) = model.pools
    assert pool.gpus == pytest.approx(1.0)
    assert pool.used_ratio == pytest.approx(0.3)


def test_engines_of_several_pools_divide_the_gpu_that_they_share() -> None:
    rows = looks.a_node()
    looks.add_gpu(rows, 0, (0, 10, 10, 0, 0))
    for role in ("prefill", "decode", "mixed"):
        shared = {"engine": role, "role": role, "engine_namespace": "", "gpu": "GPU-0000"}
        looks.add(rows, "disagg_gpu_assignment_info", 1, **shared)
        looks.add_engine(rows, role, role, used=0.9)
        looks.add_pool(rows, role, 0.9 / 3, 1 / 3)

    (model,) = looks.viewed([(rows, looks.AT)]).models

    assert [pool.used_ratio for pool in model.pools] == [pytest.approx(0.9)] * 3
    assert sum(pool.gpus or 0.0 for pool in model.pools) == pytest.approx(1.0)


def test_a_failed_worker_is_listed_above_failed_collectors() -> None:
    texts = [trouble.text for trouble in top_screens.failed_node().troubles]

    assert texts[0].startswith("Worker prefill-0 has crashed so often that it was given up")
    assert texts[-1] == "Collector nvml failed: disagg-node doctor says what that costs."
    assert not any("engine:decode-0" in text for text in texts)


def test_a_worker_drained_by_hand_is_marked_and_named() -> None:
    rows = looks.serving(2, 2, looks.AT, launched=False)
    looks.add_worker(rows, "prefill-0", "ready")
    looks.add_worker(rows, "decode-0", "ready", drained=True)

    view = looks.viewed([(rows, looks.AT)])

    assert {each.engine: each.state for each in view.engines} == {
        "prefill-0": "ready",
        "decode-0": "drained",
    }
    assert {each.worker: each.marks for each in view.workers} == {
        "prefill-0": (),
        "decode-0": ("drained",),
    }
    assert [trouble.text for trouble in view.troubles] == [
        "Worker decode-0 is drained by hand: it gets no requests until resumed."
    ]


def test_changes_between_two_readings_are_reported_once() -> None:
    before = reading_of(looks.serving(2, 2, looks.AT - 5), looks.AT - 5)
    rows = looks.serving(2, 2, looks.AT, launched=False)
    looks.add_worker(rows, "prefill-0", "ready", restarts=1)
    looks.add_worker(rows, "decode-0", "draining")
    after = reading_of(rows, looks.AT)

    assert [event.text for event in events_between(before, after)] == [
        "decode-0 ready → draining",
        "prefill-0 was started again (1 time so far)",
    ]
    assert list(events_between(after, after)) == []


def plan(
    role: str, current: float, recommended: float, cluster: str = "blue", namespace: str = ""
) -> PlanReading:
    key = PoolKey(cluster, "llama", namespace, role)
    return PlanReading(key, "H100", current, recommended, recommended, "1h")


def test_gpus_move_between_roles_before_any_are_added() -> None:
    moves = moves_of([plan("prefill", 4, 7), plan("decode", 4, 2)])

    assert moves == (
        "move 2 x H100 from decode to prefill of llama within 1h",
        "add 1 x H100 for prefill of llama within 1h",
    )


def test_moves_name_the_cluster_and_namespace_of_models_of_one_name() -> None:
    moves = moves_of(
        [
            plan("prefill", 4, 7),
            plan("prefill", 2, 1, "green"),
            plan("prefill", 1, 2, "green", "search"),
        ],
        several=True,
    )

    assert moves == (
        "add 3 x H100 for prefill of blue llama within 1h",
        "remove 1 x H100 for prefill of green llama within 1h",
        "add 1 x H100 for prefill of green search/llama within 1h",
    )


def test_plans_name_the_cluster_and_namespace_of_models_of_one_name() -> None:
    rows = looks.a_node()
    for cluster, namespace in (("blue", ""), ("green", "search")):
        whose = {"cluster": cluster, "model_name": "llama", "engine_namespace": namespace}
        kind = {"kind": "current", "role": "decode", "gpu_name": "H100"}
        looks.add(rows, "disagg_plan_gpus", 2, **whose, **kind)

    shown = planned(looks.viewed([(rows, looks.AT)]))

    assert ["".join(span.text for span in line).split(maxsplit=1)[1] for line in shown] == [
        "blue llama decode on H100: 2 now",
        "green search/llama decode on H100: 2 now",
    ]


def test_a_fulfilled_plan_has_no_moves() -> None:
    assert moves_of([plan("prefill", 4, 4), plan("decode", 4, 4)]) == ()


def test_arrivals_of_a_model_are_counted_from_its_best_source_only() -> None:
    rows = looks.a_node()
    for source, model, count in (
        ("engine", "llama", 100.0),
        ("frontend", "llama", 40.0),
        ("engine", "qwen", 7.0),  # no frontend knows of it
    ):
        name = "disagg_request_arrivals_total"
        looks.add(rows, name, count, source=source, model_name=model)

    assert sum(reading_of(rows, looks.AT).arrivals.values()) == 47


def test_a_frontend_that_counted_nothing_does_not_hide_the_requests_of_engines() -> None:
    rows = looks.a_node()
    for source, count in (("engine", 100.0), ("frontend", 0.0)):
        looks.add(rows, "disagg_request_arrivals_total", count, source=source, model_name="llama")

    assert sum(reading_of(rows, looks.AT).arrivals.values()) == 100


def test_waits_at_mixed_engines_and_at_pools_of_a_model_are_shown_together() -> None:
    """Nineteen in twenty of its users are served by the pools, more slowly."""

    def reading(second: int) -> tuple[looks.Rows, float]:
        rows = looks.a_node()
        name = "disagg_request_time_to_first_token_seconds_bucket"
        for source, fast, all_of_them in (("engine", 1, 1), ("pools", 0, 19)):
            whose = {"source": source, "model_name": "llama"}
            for bound, count in (("0.5", fast), ("5.0", all_of_them), ("+Inf", all_of_them)):
                looks.add(rows, name, second * count, le=bound, **whose)
        return rows, looks.AT + second

    view = looks.viewed([reading(1), reading(31)])

    assert view.users_first_token_p95_seconds == pytest.approx(0.5 + 4.5 * 18 / 19)


def arrived(second: int, **counts: float) -> tuple[looks.Rows, float]:
    """A reading in which these sources have counted so many requests, each served in 0.2 s."""
    rows = looks.a_node()
    for source, count in counts.items():
        of = {"source": source, "model_name": "llama"}
        looks.add(rows, "disagg_request_arrivals_total", count, **of)
        for bound in ("0.5", "+Inf"):
            name = "disagg_request_time_to_first_token_seconds_bucket"
            looks.add(rows, name, count, le=bound, **of)
    return rows, looks.AT + second


def test_counts_of_different_sources_are_not_subtracted() -> None:
    """The frontend is no longer read from 20 s on; the engine has counted since it started."""
    readings = [
        arrived(0, engine=50_000.0, frontend=100.0),
        arrived(10, engine=50_010.0, frontend=110.0),
        arrived(20, engine=50_020.0),
        arrived(30, engine=50_040.0),
    ]
    views = [looks.viewed(readings[: count + 1]) for count in range(1, 4)]

    assert [view.arrivals_per_second for view in views] == [1.0, None, 2.0]
    assert [view.rates_seconds for view in views] == [10.0, 20.0, 30.0]
    assert [view.users_first_token_p95_seconds is None for view in views] == [False, True, False]


def test_a_node_that_restarts_or_leaves_does_not_add_the_counts_of_the_others() -> None:
    def counted(second: int, **nodes: float) -> tuple[looks.Rows, float]:
        rows = looks.a_node("gpu-0")
        for node, count in nodes.items():
            of = {"source": "engine", "model_name": "llama", "node": node}
            looks.add(rows, "disagg_request_arrivals_total", count, **of)
        return rows, looks.AT + second

    both = counted(0, a=50_000.0, b=50_000.0)
    restarted = looks.viewed([both, counted(10, a=50_010.0, b=5.0)])
    left = looks.viewed([both, counted(10, a=50_010.0)])
    joined = looks.viewed([both, counted(10, a=50_010.0, b=50_010.0, c=50_000.0)])

    assert restarted.arrivals_per_second == 1.5
    assert left.arrivals_per_second == 1.0
    assert joined.arrivals_per_second == 2.0


def test_an_engine_with_a_changed_role_has_the_latency_of_its_current_role() -> None:
    def series(waits: int) -> looks.Rows:
        rows = looks.a_node()
        looks.add_engine(rows, "engine-0", "decode", waits=waits)
        name = "disagg_engine_prefill_time_to_first_token_seconds_bucket"
        looks.add(rows, name, waits, le="0.001", engine="engine-0")
        looks.add(rows, name, waits, le="+Inf", engine="engine-0")
        return rows

    view = looks.viewed([(series(10), looks.AT - 60), (series(110), looks.AT)])

    assert view.engines[0].first_token_p95_seconds == pytest.approx(1.5)


def engine_at(second: int, role: str, **more: int | None) -> tuple[looks.Rows, float]:
    rows = looks.a_node()
    looks.add_engine(rows, "engine-0", role, **more)  # type: ignore[arg-type] # counts
    return rows, looks.AT + second


def test_latencies_of_an_engines_life_are_not_those_of_the_last_minute() -> None:
    """Its page was not read at first; it has served for days."""
    readings = [
        engine_at(0, "decode"),
        engine_at(10, "decode", waits=10_000, tokens=90_000),
        engine_at(20, "decode", waits=10_000, tokens=90_500),
    ]
    found = [looks.viewed(readings[: count + 1]).engines[0] for count in (1, 2)]

    assert [each.first_token_p95_seconds for each in found] == [None, None]
    assert [each.tokens_per_second for each in found] == [None, 50]


def test_latencies_of_different_roles_are_not_subtracted() -> None:
    view = looks.viewed([engine_at(0, "prefill", waits=900), engine_at(10, "decode", waits=100)])

    assert view.engines[0].first_token_p95_seconds is None


def test_recorded_cluster_verdicts_override_those_of_the_nodes() -> None:
    rows = looks.serving(8, 2, looks.AT)
    name = "cluster_model_namespace:disagg_fullest_pool:ratio"
    verdict = "both pools are filling up"
    looks.add(rows, name, 0.9, model_name="llama", engine_namespace="", verdict=verdict)

    assert looks.viewed([(rows, looks.AT)]).models[0].verdicts == (verdict,)


def test_rates_cover_about_a_minute_with_readings_each_second() -> None:
    series = [(looks.serving(1, 1, looks.AT + second), looks.AT + second) for second in range(130)]

    history = ReadingHistory()
    for rows, at in series:
        history.add(reading_of(rows, at))

    assert history.newest is not None
    assert history.earlier is not None
    passed = history.newest.at_seconds - history.earlier.at_seconds
    assert 60 <= passed <= 66


@pytest.mark.parametrize(
    ("launched", "said"),
    [
        (True, "Engine decode-0 does not answer its health probe."),
        (False, "The metrics page of engine decode-0 cannot be read."),
    ],
)
def test_only_engines_that_a_node_launched_are_said_to_miss_health_probes(
    launched: bool, said: str
) -> None:
    rows = looks.serving(2, 2, looks.AT, launched=launched)
    rows["disagg_engine_up"] = [
        each._replace(value=float(each.labels["engine"] != "decode-0"))
        for each in rows["disagg_engine_up"]
    ]

    troubles = troubles_of(reading_of(rows, looks.AT))
    assert [each.text for each in troubles] == [said]
