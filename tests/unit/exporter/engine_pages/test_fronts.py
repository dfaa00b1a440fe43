from __future__ import annotations

from pathlib import Path

import pytest

from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.fronts import MOST_MODELS, is_front_page, parse_front_page
from disagg_exporter.model import RequestSource, ServingCounts, Total

DATA = Path(__file__).parents[3] / "data"


def read(*lines: str) -> dict[str | None, ServingCounts]:
    """What a page of these lines says, by model."""
    page = parse_front_page(("\n".join(lines) + "\n").encode(), 7)
    return {each.model_name: each.serving for each in page.models}


def test_the_captured_page_of_dynamos_frontend_gives_user_metrics() -> None:
    """Dynamo 1.6.1 with mock workers, after 202 requests of 4000 tokens to one model."""
    page = parse_front_page((DATA / "frontend-dynamo-1.6.1" / "frontend.prom").read_bytes(), 7)

    assert page.source is RequestSource.FRONTEND
    [model] = page.models
    assert (model.model_name, model.t_ns, model.waiting) == ("tiny", 7, 0)
    served = model.serving
    assert served.totals == {
        Total.ARRIVED_REQUESTS: 202,
        Total.ENDED_SUCCESS: 202,
        Total.ENDED_ERROR: 0,
        Total.REJECTED_FOR_LOAD: 0,
    }
    assert served.time_to_first_token is not None
    assert served.duration is not None
    assert served.prompt_tokens is not None
    assert served.output_tokens is not None
    assert served.time_to_first_token.sum == pytest.approx(48.307, abs=0.001)
    assert served.time_to_first_token.total == 202
    assert served.duration.sum == pytest.approx(282.651, abs=0.001)
    assert served.prompt_tokens.sum == 800_026
    assert served.output_tokens.sum == 30_024


def test_the_captured_page_of_vllm_router_gives_durations_without_a_model() -> None:
    page = parse_front_page((DATA / "vllm-router-0.1.17" / "router.prom").read_bytes(), 7)

    assert page.source is RequestSource.ROUTER
    [model] = page.models
    assert (model.model_name, dict(model.serving.totals)) == ("", {})
    assert model.serving.duration is not None
    assert (model.serving.duration.total, model.serving.time_to_first_token) == (121, None)
    # Its bounds of 2.5 and 10 s are ours, too; at 20 s the next below, 15, is taken.
    counts = dict(zip(model.serving.duration.bounds, model.serving.duration.counts, strict=False))
    assert (counts[2.5], counts[10.0], counts[20.0]) == (71, 94, 112)


def test_models_are_separated_and_endpoints_summed() -> None:
    models = read(
        'smg_router_requests_total{model="a",endpoint="chat",streaming="true"} 3',
        'smg_router_requests_total{model="a",endpoint="completions",streaming="true"} 4',
        'smg_router_requests_total{model="b",endpoint="chat",streaming="true"} 5',
        'smg_router_request_errors_total{model="b",endpoint="chat",error_type="timeout"} 1',
        'smg_router_ttft_seconds_bucket{model="a",endpoint="chat",le="0.1"} 1',
        'smg_router_ttft_seconds_bucket{model="a",endpoint="chat",le="+Inf"} 2',
        'smg_router_ttft_seconds_sum{model="a",endpoint="chat"} 0.5',
    )

    assert models["a"].totals == {Total.ARRIVED_REQUESTS: 7}
    assert models["b"].totals == {Total.ARRIVED_REQUESTS: 5, Total.ENDED_ERROR: 1}
    assert models["a"].time_to_first_token is not None
    assert models["a"].time_to_first_token.total == 2
    assert models["b"].time_to_first_token is None


def test_models_beyond_the_limit_are_counted_as_left_out() -> None:
    names = [f"model-{number}" for number in range(MOST_MODELS + 3)]
    lines = (f'dynamo_frontend_requests_started_total{{model="{name}"}} 1\n' for name in names)

    page = parse_front_page("".join(lines).encode(), 7)

    assert [each.model_name for each in page.models] == names[:MOST_MODELS]
    assert page.left_out_models == 3


def test_an_empty_page_of_a_router_has_no_models() -> None:
    assert parse_front_page(b"", 7).models == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"vllm:num_requests_running 1\n", "no series of a known frontend"),
        (b'dynamo_frontend_requests_started_total{model="a"} 1', "cut off"),
        (b'dynamo_frontend_requests_started_total{model="a"} -1\n', "not a valid count"),
        (b'dynamo_frontend_requests_started_total{model="a} 1\n', "cannot be read"),
    ],
)
def test_a_page_of_another_program_is_an_error(text: bytes, why: str) -> None:
    with pytest.raises(PageError, match=why):
        parse_front_page(text, 7)


@pytest.mark.parametrize(
    ("page", "is_front"),
    [
        ("frontend-dynamo-1.6.1/frontend.prom", True),
        ("vllm-router-0.1.17/router.prom", True),
        ("vllm-0.32.0/aggregated.prom", False),
        ("dynamo-1.6.1/decode.prom", False),
    ],
)
def test_pages_of_frontends_and_routers_are_told_from_those_of_engines(
    page: str, is_front: bool
) -> None:
    assert is_front_page((DATA / page).read_bytes()) == is_front


def test_requests_waiting_for_pools_are_summed_and_absent_if_unreported() -> None:
    """Dynamo's default router keeps no queue and does not write the series."""
    queue, duration = "dynamo_frontend_router_queue_pending_requests", "vllm_router_pd_request"
    lines = (
        f'{queue}{{model="m",worker_type="prefill"}} 5',
        f'{queue}{{model="m",worker_type="decode"}} 2',
        'dynamo_frontend_requests_started_total{model="n"} 1',
    )
    frontend = parse_front_page(("\n".join(lines) + "\n").encode(), 7)
    router = parse_front_page(f"{duration}_duration_seconds_sum 0\n".encode(), 7)

    assert {each.model_name: each.waiting for each in frontend.models} == {"m": 7, "n": None}
    assert [each.waiting for each in router.models] == [None]
