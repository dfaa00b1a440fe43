from dataclasses import replace

import pytest

from disagg_exporter.engine_pages.histograms import FIRST_TOKEN_BOUNDS_SECONDS
from disagg_exporter.model import (
    EnginePage,
    EngineStatus,
    Histogram,
    KvQueue,
    Method,
    Role,
    ServingCounts,
    Snapshot,
)
from support.client_metrics import render
from support.snapshots import TAKEN_NS, golden_snapshot

TTFT = "disagg_engine_time_to_first_token_seconds"
ITL = "disagg_engine_inter_token_latency_seconds"
COMPONENT = "disagg_engine_ttft_component_seconds_total"


def of_decode(**changes: object) -> Snapshot:
    """The golden node with only its decode engine, changed."""
    snapshot = golden_snapshot()
    decode: EngineStatus = next(e for e in snapshot.engines if e.engine == "decode-0")
    return replace(snapshot, engines=(replace(decode, **changes),))  # type: ignore[arg-type]


def rows(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix(name), *sample.labels.values()): sample.value
        for metric in render(snapshot, TAKEN_NS)
        for sample in metric.samples
        if sample.name.startswith(name)
    }


@pytest.mark.parametrize(
    ("role", "shown"),
    [
        (Role.PREFILL, False),
        (Role.DECODE, True),
        (Role.MIXED, True),
        (Role.ENCODE, False),
        (Role.UNKNOWN, False),
    ],
)
def test_user_latency_is_reported_for_roles_that_serve_users(role: Role, shown: bool) -> None:
    """A prefill engine's is a request of one token; both together would count twice."""
    snapshot = of_decode(role=role)

    assert bool(rows(snapshot, TTFT)) is shown
    assert bool(rows(snapshot, ITL)) is shown


def test_a_histogram_has_its_buckets_sum_and_count() -> None:
    shown = rows(of_decode(), TTFT)

    buckets = {labels[-1]: count for labels, count in shown.items() if labels[0] == "_bucket"}
    assert list(buckets) == [*map(str, FIRST_TOKEN_BOUNDS_SECONDS), "+Inf"]
    assert {buckets[bound] for bound in ("0.01", "0.04")} == {0}
    assert {buckets[bound] for bound in ("0.1", "0.25", "0.5")} == {1100}
    assert {buckets[bound] for bound in ("1.0", "80.0", "+Inf")} == {1198}
    assert shown["_count", "decode-0", "decode"] == 1198
    assert shown["_sum", "decode-0", "decode"] == 54


def test_a_prefill_engines_time_to_first_token_is_a_separate_metric() -> None:
    """Sums over the other family, as in older rules, must not count a request twice."""
    name = "disagg_engine_prefill_time_to_first_token_seconds"

    assert rows(of_decode(role=Role.PREFILL), name)["_count", "decode-0", "prefill"] == 1198
    assert not rows(of_decode(role=Role.MIXED), name)


@pytest.mark.parametrize(
    ("role", "components"),
    [
        (Role.PREFILL, {"queue", "prefill"}),
        (Role.MIXED, {"queue", "prefill"}),
        (Role.DECODE, {"queue", "first_decode"}),
        (Role.UNKNOWN, {"queue"}),
    ],
)
def test_the_component_before_the_first_token_depends_on_the_role(
    role: Role, components: set[str]
) -> None:
    """From its first step to its first token a request that came with its KV decodes."""
    assert {row[-1] for row in rows(of_decode(role=role), COMPONENT)} == components


def test_an_engine_that_was_never_read_has_no_counts() -> None:
    snapshot = of_decode(serving=None)

    assert rows(snapshot, COMPONENT) == rows(snapshot, "disagg_engine_preemptions") == {}


@pytest.mark.parametrize(
    ("kind", "version", "expected"),
    [
        ("vllm", "0.33.0", [1.0]),
        ("vllm", "0.34.0", [0.0]),
        ("vllm", "", []),
        ("dynamo", "x", [0.0]),
    ],
)
def test_a_version_is_known_unknown_or_unreported(
    kind: str, version: str, expected: list[float]
) -> None:
    snapshot = of_decode(version=version, page=EnginePage(kind, TAKEN_NS))

    assert list(rows(snapshot, "disagg_engine_version_known").values()) == expected


@pytest.mark.parametrize(
    ("method", "kind", "clock"),
    [
        (Method.STEPS, "vllm", "engine_wait"),
        (Method.FPM, "vllm", "schedule_to_update"),
        (Method.FPM, "sglang", "cuda_span"),
        (Method.PAGE, "vllm", None),
        (Method.NONE, "sglang", None),
    ],
)
def test_the_meaning_of_a_steps_duration_is_reported(
    method: Method, kind: str, clock: str | None
) -> None:
    snapshot = of_decode(kind=kind)
    accounts = tuple(replace(a, method=method) for a in snapshot.engine_accounts)

    told = rows(replace(snapshot, engine_accounts=accounts), "disagg_engine_step_clock_info")

    assert [row[-1] for row in told] == ([] if clock is None else [clock])


def test_cache_use_comes_from_the_page_if_steps_report_only_tokens() -> None:
    snapshot = of_decode()
    accounts = tuple(
        replace(a, method=Method.FPM, running=3, kv_usage_ratio=0.0)
        for a in snapshot.engine_accounts
        if a.engine == "decode-0"
    )

    told = rows(replace(snapshot, engine_accounts=accounts), "disagg_engine_kv_cache_usage_ratio")

    assert list(told.values()) == [0.07]


QUEUE = "disagg_engine_kv_queue_requests"
QUEUES = {queue: float(number) for number, queue in enumerate(KvQueue)}


@pytest.mark.parametrize(
    ("role", "shown"),
    [
        (Role.PREFILL, {"bootstrap": 0.0, "inflight": 1.0}),
        (Role.DECODE, {"prealloc": 2.0, "transfer": 3.0}),
        (Role.MIXED, {}),
        (Role.UNKNOWN, {}),
    ],
)
def test_queues_are_those_of_the_role(role: Role, shown: dict[str, float]) -> None:
    """SGLang's engines have the other role's on their page, too, always at 0."""
    snapshot = of_decode(role=role, page=EnginePage("sglang", TAKEN_NS, kv_queues=QUEUES))

    assert {key[-1]: value for key, value in rows(snapshot, QUEUE).items()} == shown


def test_unreported_queues_are_absent() -> None:
    page = EnginePage("vllm", TAKEN_NS, kv_queues={KvQueue.TRANSFER: 4.0})

    shown = rows(of_decode(page=page), QUEUE)
    assert {key[-1]: value for key, value in shown.items()} == {"transfer": 4.0}


@pytest.mark.parametrize(
    ("role", "shown"), [(Role.PREFILL, True), (Role.MIXED, True), (Role.DECODE, False)]
)
def test_prompt_lengths_are_reported_for_prefilling_engines(role: Role, shown: bool) -> None:
    prompts = Histogram((1000.0, 10_000.0), (3.0, 5.0, 6.0), 40_000.0)
    serving = ServingCounts(prompt_tokens=prompts)

    found = rows(of_decode(role=role, serving=serving), "disagg_engine_request_prompt_tokens")
    counts = {key[-1]: count for key, count in found.items() if key[0] == "_bucket"}
    assert bool(found) is shown
    assert not shown or (counts["500.0"], counts["1000.0"], counts["+Inf"]) == (0, 3, 6)
