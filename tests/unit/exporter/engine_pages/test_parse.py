import dataclasses
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from disagg_exporter.engine_pages.exposition.layout import MAX_LINE_BYTES, MAX_WANTED_BYTES
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.engine_pages.series import LARGEST
from disagg_exporter.engine_pages.window import window
from disagg_exporter.model import EnginePage, ServingCounts

CAPTURES = Path(__file__).parents[3] / "data" / "vllm-0.32.0"

RUNNING = b'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
TOKENS = b'vllm:generation_tokens_total{engine="0",model_name="m"} 1820.0\n'


def load_and_tokens(page: EnginePage) -> EnginePage:
    """A page without all that test_golden_pages looks at."""
    return dataclasses.replace(
        page,
        serving=ServingCounts(),
        kv_cache_tokens=None,
        asleep=None,
        kv_queues={},
        steps_total=None,
        ranks=1,
    )


def golden(computed: float, external: float, generated: float) -> EnginePage:
    return EnginePage("vllm", 7, "tiny", 0.0, 0.0, 0.0, 0.0, computed, external, generated)


# Real pages


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("aggregated.prom", golden(1298, 0, 286)),
        ("example_prefill.prom", golden(530, 0, 20)),
        ("example_decode.prom", golden(402, 128, 286)),
        ("nixl_prefill.prom", golden(2598, 0, 121)),
        # prompt_tokens_total says 8614 here; this engine computed none of them.
        ("nixl_decode.prom", golden(0, 2662, 1820)),
    ],
)
def test_a_real_vllm_page_gives_its_values(file: str, expected: EnginePage) -> None:
    assert load_and_tokens(parse_page((CAPTURES / file).read_bytes(), 7)) == expected


@pytest.mark.parametrize("file", sorted(path.name for path in CAPTURES.glob("*.prom")))
def test_the_filtered_page_agrees_with_the_reference_parser(file: str) -> None:
    text = (CAPTURES / file).read_bytes()
    computed = sum(
        sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == "vllm:prompt_tokens_by_source_total"
        and sample.labels["source"] == "local_compute"
    )

    assert parse_page(text, 0).computed_tokens_total == computed


@pytest.mark.parametrize("file", ["aggregated.prom", "nixl_decode.prom"])
def test_a_page_with_renamed_colons_is_the_same_page(file: str) -> None:
    text = (CAPTURES / file).read_bytes()

    assert parse_page(text.replace(b"vllm:", b"vllm_"), 0) == parse_page(text, 0)


@pytest.mark.parametrize("cut", range(1, 61, 7))
def test_a_page_cut_inside_a_line_is_refused(cut: int) -> None:
    """Otherwise 1820 cut to 18 would be accepted, and the next page look like 1802 tokens."""
    with pytest.raises(PageError, match="cut off"):
        parse_page((RUNNING + TOKENS)[:-cut], 0)


# What the numbers mean


def test_ranks_are_summed_and_their_kv_use_averaged() -> None:
    page = b"".join(
        b'vllm:num_requests_running{engine="%d"} 2\nvllm:kv_cache_usage_perc{engine="%d"} 0.%d\n'
        b'vllm:generation_tokens_total{engine="%d"} 10\n' % (rank, rank, rank, rank)
        for rank in range(4)
    )

    parsed = parse_page(page, 0)

    assert (parsed.running, parsed.generation_tokens_total) == (8, 40)
    assert parsed.kv_usage_ratio == pytest.approx(0.15)


def test_waiting_excludes_deferred_requests() -> None:
    page = (
        b"vllm:num_requests_waiting 5\n"
        b'vllm:num_requests_waiting_by_reason{reason="capacity"} 1\n'
        b'vllm:num_requests_waiting_by_reason{reason="deferred"} 4\n'
    )

    assert parse_page(page, 0).waiting == 1


def test_an_older_engine_without_reasons_gives_all_waiting_requests() -> None:
    assert parse_page(b"vllm:num_requests_waiting 5\n", 0).waiting == 5


def test_values_missing_from_the_page_are_absent() -> None:
    page = parse_page(b"vllm:prompt_tokens_total 8614\n" + RUNNING, 0)

    assert page == EnginePage("vllm", 0, "m", running=3)


def test_a_series_with_a_longer_name_is_another_one() -> None:
    page = parse_page(RUNNING + b"vllm:num_requests_running_created 1.7e9\n", 0)

    assert page.running == 3


def test_several_models_on_one_page_leave_the_model_unknown() -> None:
    assert parse_page(RUNNING + TOKENS.replace(b'"m"', b'"other"'), 0).model_name is None


def test_labels_may_hold_braces_quotes_and_spaces() -> None:
    page = parse_page(b'vllm:num_requests_running{model_name="a} \\"b\\" {c, 9"} 4\n', 0)

    assert (page.running, page.model_name) == (4, 'a} "b" {c, 9')


def test_timestamps_carriage_returns_and_tabs_are_accepted() -> None:
    page = parse_page(b"vllm:num_requests_running\t4 1700000000000\r\n", 0)

    assert page.running == 4


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-Inf", b"-1", b"1e300"])
def test_an_invalid_counter_value_is_refused(value: bytes) -> None:
    with pytest.raises(PageError, match="generation_tokens_total is"):
        parse_page(RUNNING + TOKENS.replace(b"1820.0", value), 0)


def test_counts_whose_sum_is_no_valid_count_are_refused() -> None:
    large = TOKENS.replace(b"1820.0", repr(LARGEST).encode())

    assert parse_page(RUNNING + large, 0).generation_tokens_total == LARGEST
    with pytest.raises(PageError, match="generation_tokens_total is"):
        parse_page(RUNNING + large + large.replace(b'"0"', b'"1"'), 0)


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-1", b"9" * 400])
def test_an_invalid_gauge_value_is_absent(value: bytes) -> None:
    page = parse_page(RUNNING.replace(b"3.0", value) + TOKENS, 0)

    assert (page.running, page.generation_tokens_total) == (None, 1820)


def test_a_kv_use_above_one_is_absent() -> None:
    assert parse_page(RUNNING + b"vllm:kv_cache_usage_perc 37.5\n", 0).kv_usage_ratio is None


def test_a_page_may_begin_with_a_quoted_name() -> None:
    assert parse_page(b'{"a.name"} 1\n' + RUNNING, 0).running == parse_page(RUNNING, 0).running


# What is no page


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "the page is empty"),
        (b"\n", "no series of a known engine"),
        (gzip.compress(b"vllm:num_requests_running 1\n"), "compressed by gzip"),
        (b"<!DOCTYPE html>\n<html></html>\n", "HTML"),
        (b'{"detail":"Not Found"}\n', "no series of a known engine"),
        (b'[{"iter": 3, "iterLatencyMS": 5.5}]', "JSON, as TensorRT-LLM's is at this path"),
        (b"[]", "JSON, as TensorRT-LLM's is at this path"),
        (b"# TYPE up gauge\nup 1\n", "no series of a known engine"),
        (RUNNING + RUNNING, "twice"),
        (RUNNING + RUNNING.replace(b"vllm:", b"vllm_"), "twice"),
        (b"vllm:num_requests_running\n", "cannot be read"),
        (b"vllm:num_requests_running{\n", "cannot be read"),
        (b'vllm:num_requests_running{engine="0} 1\n', "cannot be read"),
        (b'vllm:num_requests_running{engine="0",engine="1"} 1\n', "cannot be read"),
        (b"vllm:num_requests_running 1 2 x\n", "cannot be read"),
        (b"vllm:num_requests_running one\n", "cannot be read"),
        (b"vllm:num_requests_running 1_000\n", "cannot be read"),
        (b'vllm:num_requests_running{model_name="\xff"} 1\n', "UTF-8"),
        (b'vllm:num_requests_running{a="%s"} 1\n' % (b"x" * MAX_LINE_BYTES), "longer than"),
        (
            b"".join(
                b'vllm:num_requests_running{engine="%d%s"} 1\n' % (i, b"x" * 4000)
                for i in range(MAX_WANTED_BYTES // 4000)
            ),
            "together",
        ),
        (
            b"".join(b'vllm:num_requests_running{a="%d"} 1\n' % i for i in range(20_001)),
            "more than 20000",
        ),
    ],
)
def test_a_text_that_is_no_page_is_refused_with_the_reason(text: bytes, why: str) -> None:
    with pytest.raises(PageError, match=why) as caught:
        parse_page(text, 0)

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


FRAGMENTS = st.sampled_from(
    [
        b"vllm:num_requests_running",
        b"vllm_generation_tokens_total",
        b"vllm:prompt_tokens_by_source_total",
        b"vllm:kv_cache_usage_perc",
        b'{engine="0"}',
        b'{source="local_compute",model_name="m"}',
        b"{",
        b"}",
        b'"',
        b"=",
        b",",
        b"\\",
        b" ",
        b"\t",
        b"#",
        b"\r",
        b" 1",
        b" -1",
        b" 1e999",
        b" NaN",
        b"_",
        b"\xff",
        "\u0661\u2028".encode(),
        b"\n",
    ]
)
TEXTS = st.lists(FRAGMENTS | st.binary(max_size=4), max_size=24).map(
    lambda parts: b"vllm:num_requests_running" + b"".join(parts) + b"\n"
)


@given(TEXTS)
def test_any_text_gives_a_sane_page_or_a_page_error(text: bytes) -> None:
    why, numbers = "", []
    try:
        numbers = list(dataclasses.astuple(load_and_tokens(parse_page(text, 0)))[3:-3])
    except PageError as error:
        why = str(error)

    assert bool(why) != bool(numbers)
    assert why == "" or (why.isprintable() and len(why) < 300)
    assert all(number is None or 0 <= number <= 1e20 for number in numbers)


# Windows

BEFORE = EnginePage("vllm", 1_000_000_000, "m", 1, 0, 0, 0.5, 100.0, 10.0, 1000.0)
AFTER = EnginePage("vllm", 3_000_000_000, "m", 1, 0, 0, 0.5, 300.0, 10.0, 1500.0)


def test_a_window_holds_what_happened_between_two_pages() -> None:
    happened = window(BEFORE, AFTER)

    assert (happened.seconds, happened.reset) == (2.0, False)
    assert happened.computed_tokens_per_second == 100.0
    assert happened.external_tokens == 0.0
    assert happened.generation_tokens_per_second == 250.0


def test_after_a_restart_only_the_counts_since_are_used() -> None:
    """One counter fell, so all were reset, also one that is larger than before."""
    restarted = dataclasses.replace(AFTER, computed_tokens_total=150.0, generation_tokens_total=4.0)

    happened = window(BEFORE, restarted)

    assert happened.reset
    assert (happened.computed_tokens, happened.generation_tokens) == (150.0, 4.0)


def test_another_model_at_the_same_address_is_a_new_engine() -> None:
    happened = window(BEFORE, dataclasses.replace(AFTER, model_name="other"))

    assert (happened.reset, happened.generation_tokens) == (True, 1500.0)


def test_a_counter_missing_from_either_page_gives_no_rate() -> None:
    happened = window(dataclasses.replace(BEFORE, computed_tokens_total=None), AFTER)

    assert (happened.computed_tokens, happened.computed_tokens_per_second) == (None, None)
    assert happened.generation_tokens == 500.0


@pytest.mark.parametrize(
    ("before", "after"),
    [(AFTER, BEFORE), (BEFORE, BEFORE), (dataclasses.replace(BEFORE, kind="sglang"), AFTER)],
)
def test_pages_that_span_no_window_are_refused(before: EnginePage, after: EnginePage) -> None:
    with pytest.raises(PageError):
        window(before, after)
