"""What engines' pages seem to say and do not: a test per trap."""

from pathlib import Path

import pytest

from disagg_exporter.engine_pages.adapters import page_path, version_path
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.engine_pages.window import window
from disagg_exporter.model import Total

DATA = Path(__file__).parents[3] / "data"

SGLANG = b'model_name="m",engine_type="decode",tp_rank="0",pp_rank="0",moe_ep_rank="0"'


def sglang(*lines: bytes) -> bytes:
    return b"".join(b"sglang:" + line.replace(b"{", b"{" + SGLANG, 1) + b"\n" for line in lines)


def total(page: bytes, which: Total) -> float | None:
    return parse_page(page, 0).serving.totals.get(which)


# vLLM


def test_iteration_tokens_total_is_a_histogram_and_no_count_of_tokens() -> None:
    page = b"vllm:num_requests_running 1\nvllm:iteration_tokens_total_sum 1820\n"

    assert parse_page(page, 0).generation_tokens_total is None


def test_preemptions_without_the_total_suffix_are_not_read() -> None:
    page = b"vllm:num_requests_running 1\nvllm:num_preemptions 7\n"

    assert total(page, Total.PREEMPTIONS) is None


def test_names_with_rays_prefix_are_read() -> None:
    page = b'ray_vllm_num_requests_running{WorkerId="a",engine="0",model_name="m"} 3\n'

    assert (parse_page(page, 0).kind, parse_page(page, 0).running) == ("vllm", 3)


def test_time_per_output_token_is_not_the_time_between_tokens() -> None:
    page = (
        b"vllm:num_requests_running 1\n"
        b'vllm:request_time_per_output_token_seconds_bucket{le="+Inf"} 9\n'
        b"vllm:request_time_per_output_token_seconds_sum 1\n"
    )

    assert parse_page(page, 0).serving.inter_token_latency is None


@pytest.mark.parametrize(
    ("awake", "asleep"), [(b"1.0", False), (b"0.0", True), (b"NaN", None), (b"", None)]
)
def test_a_sleeping_engine_is_distinguished_from_an_idle_one(
    awake: bytes, asleep: bool | None
) -> None:
    page = b"vllm:num_requests_running 0\n"
    if awake:
        page += b'vllm:engine_sleep_state{sleep_state="awake"} %s\n' % awake
        page += b'vllm:engine_sleep_state{sleep_state="discard_all"} 1.0\n'

    assert parse_page(page, 0).asleep is asleep


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        (b'kv_cache_size_tokens="16384",num_gpu_blocks="1",block_size="1"', 16384),
        (b'kv_cache_size_tokens="None",num_gpu_blocks="512",block_size="32"', 16384),
        (b'num_gpu_blocks="512",block_size="32"', 16384),
        (b'num_gpu_blocks="None",block_size="32"', None),
        (b'num_gpu_blocks="-1",block_size="32"', None),
        (b'num_gpu_blocks="%s",block_size="32"' % (b"9" * 300), None),
    ],
)
def test_the_kv_cache_size_is_read_from_the_labels(labels: bytes, tokens: float | None) -> None:
    page = b"vllm:num_requests_running 0\nvllm:cache_config_info{%s} 1\n" % labels

    assert parse_page(page, 0).kv_cache_tokens == tokens


# SGLang


def test_a_mixed_batch_is_counted_as_extend() -> None:
    """Its own category does not exist; should it ever, it is prefill there too."""
    page = parse_page(
        sglang(
            b'forward_execution_seconds_total{,category="extend"} 5',
            b'forward_execution_seconds_total{,category="decode"} 7',
            b'forward_execution_seconds_total{,category="idle"} 100',
        ),
        0,
    )

    assert (page.prefill_seconds_total, page.decode_seconds_total) == (5, 7)


def test_forward_seconds_are_absent_without_the_timer() -> None:
    page = parse_page(sglang(b"num_running_reqs{} 1"), 0)

    assert (page.prefill_seconds_total, page.decode_seconds_total) == (None, None)


def test_an_absent_mode_is_zero_beside_a_present_one() -> None:
    """So that the first tokens of a kind are counted, and not left out as earlier ones."""
    before = parse_page(sglang(b'realtime_tokens_total{,mode="decode"} 10'), 1)
    after = parse_page(
        sglang(
            b'realtime_tokens_total{,mode="decode"} 10',
            b'realtime_tokens_total{,mode="prefill_compute"} 4000',
        ),
        1_000_000_001,
    )

    assert window(before, after).computed_tokens == 4000


def test_transfer_gauges_of_older_builds_are_the_last_transfer_only() -> None:
    page = sglang(b"num_running_reqs{} 1", b"kv_transfer_latency_ms{} 62.5")

    assert total(page, Total.TRANSFER_SECONDS) is None


def test_milliseconds_and_mebibytes_become_seconds_and_bytes() -> None:
    page = sglang(b"kv_transfer_latency_ms_sum{} 1500", b"kv_transfer_total_mb_sum{} 2")

    assert total(page, Total.TRANSFER_SECONDS) == 1.5
    assert total(page, Total.TRANSFER_BYTES) == 2 * 2**20


def test_the_bootstrap_queue_is_read_under_its_older_name() -> None:
    page = sglang(b"num_prefill_prealloc_queue_reqs{} 4")

    assert parse_page(page, 0).deferred == 4


def test_a_gauge_by_priority_is_not_added_to_its_total() -> None:
    page = sglang(
        b'num_running_reqs{,priority=""} 5',
        b'num_running_reqs{,priority="0"} 3',
        b'num_running_reqs{,priority="7"} 2',
    )

    assert parse_page(page, 0).running == 5


def test_ranks_that_report_the_same_requests_are_not_summed() -> None:
    page = sglang(b"num_running_reqs{} 5")
    page += page.replace(b'tp_rank="0"', b'tp_rank="1"') + page.replace(
        b'pp_rank="0"', b'pp_rank="1"'
    )

    assert parse_page(page, 0).running == 5


def test_ranks_with_separate_requests_are_summed() -> None:
    page = sglang(b'num_running_reqs{,dp_rank="0"} 5')
    page += page.replace(b'dp_rank="0"', b'dp_rank="1"').replace(b'tp_rank="0"', b'tp_rank="4"')

    assert parse_page(page, 0).running == 10


def test_unmeasured_occupancy_is_ignored() -> None:
    assert parse_page(sglang(b"fwd_occupancy{} NaN", b"num_running_reqs{} 1"), 0).running == 1


# TensorRT-LLM


def test_the_destructive_page_is_never_requested() -> None:
    assert page_path("trtllm") == "/prometheus/metrics"
    assert {page_path(kind) for kind in ("vllm", "sglang", "dynamo", "standin")} == {"/metrics"}
    assert version_path("sglang") == "/server_info"


def test_names_without_a_prefix_are_accepted_only_with_the_engines_label() -> None:
    """Another program's page may have a time_to_first_token_seconds, too."""
    names = b"request_success_total"

    with pytest.raises(PageError, match="no series of a known engine"):
        parse_page(names + b'{model_name="m"} 3\n', 0)
    assert parse_page(names + b'{model_name="m",engine_type="undefined"} 3\n', 0).kind == "trtllm"


# Dynamo


def test_a_dynamo_worker_is_the_engine_whose_series_it_carries() -> None:
    text = (DATA / "dynamo-1.6.1" / "decode.prom").read_bytes()

    assert parse_page(text, 0).kind == "vllm"


def test_requests_in_flight_at_a_dynamo_worker_are_not_its_load() -> None:
    """With a rendezvous an overloaded prefill fills them on the decode side."""
    page = b'dynamo_component_inflight_requests{dynamo_endpoint="generate"} 81\n'
    served = b'dynamo_component_requests_total{dynamo_endpoint="generate"} 3\n'

    assert parse_page(page + served, 0).running is None
    assert parse_page(page + served + b"vllm:num_requests_running 17\n", 0).running == 17


def test_a_mock_prefill_worker_without_an_engines_series_still_has_a_page() -> None:
    page = parse_page((DATA / "dynamo-1.6.1" / "prefill.prom").read_bytes(), 0)

    assert (page.kind, page.running) == ("dynamo", None)
    assert page.serving.totals == {Total.FINISHED_REQUESTS: 202}
