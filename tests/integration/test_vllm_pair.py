"""A real vLLM prefill and decode engine, measured; the truth is stamped inside their workers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from disagg_cluster.demo.disaggregated_client import EXAMPLE, complete, complete_on_one
from support.prometheus_query import query
from support.running_node import Page, RunningNode, wait_for
from support.vllm_nodes import MODEL_NAME, truth_file
from support.vllm_pair import read_truth
from support.vllm_session import RealPair, Say

pytestmark = [pytest.mark.vllm, pytest.mark.prometheus]

REQUEST_SECONDS = 180.0
PROMPTS = [f"{number}: " + "the quick brown fox jumps over the dog " * 6 for number in range(12)]


def gpu_seconds(page: Page, engine: str) -> float:
    """Return the GPU-seconds booked for an engine."""
    return page.sum("disagg_engine_gpu_seconds_total", engine=engine)


def true_seconds(pair: RealPair, engine: str) -> float:
    """Return the step time that the engine's worker stamped itself."""
    return sum(step.held_ns for step in read_truth(truth_file(pair.run_dir, engine))) / 1e9


def load_one(node: RunningNode, engine: str, max_tokens: int, heading: str = "") -> None:
    """Send the prompts to one engine alone, two at a time; under another heading none is cached."""
    with ThreadPoolExecutor(2) as requests:
        list(
            requests.map(
                lambda prompt: complete_on_one(
                    node.url(engine), MODEL_NAME, heading + prompt, max_tokens, REQUEST_SECONDS
                ),
                PROMPTS,
            )
        )


@pytest.mark.parametrize(("engine", "max_tokens"), [("prefill-0", 1), ("decode-0", 24)])
def test_gpu_seconds_match_those_measured_in_the_worker(
    example_pair: RealPair, engine: str, max_tokens: int, say: Say
) -> None:
    """One engine loaded at a time: within 5 % of start and end of model execution inside it.

    Three rounds at most: a busy machine may delay an engine once between its measurement and its
    record. A defect of the accounting would show in each round.
    """
    node = example_pair.node
    off = []
    while len(off) < 3 and (not off or abs(off[-1]) > 0.05):
        before, stamped_before = node.wait_settled(), true_seconds(example_pair, engine)

        load_one(node, engine, max_tokens, heading=len(off) * "again ")
        after = node.wait_settled()

        booked = gpu_seconds(after, engine) - gpu_seconds(before, engine)
        stamped = true_seconds(example_pair, engine) - stamped_before
        off.append(booked / stamped - 1)
        say(f"{engine}: booked {booked:.3f} s, stamped {stamped:.3f} s, {off[-1]:+.2%}")
        assert stamped > 0.5
    assert min(off, key=abs) == pytest.approx(0.0, abs=0.05)


def test_page_step_records_and_prometheus_agree_on_the_same_run(
    example_pair: RealPair, say: Say
) -> None:
    """GPU-seconds match the totals of the plugin, and the ratio matches that of Prometheus."""
    node = example_pair.node
    before = node.wait_settled()

    texts = [
        complete(
            node.url("prefill-0"),
            node.url("decode-0"),
            MODEL_NAME,
            prompt + "again",
            16,
            EXAMPLE,
            REQUEST_SECONDS,
        ).text
        for prompt in PROMPTS
    ]
    alone = complete_on_one(
        node.url("prefill-0"), MODEL_NAME, PROMPTS[0] + "again", 16, REQUEST_SECONDS
    )
    after = node.wait_settled()

    assert texts[0] == alone.text
    for engine in ("prefill-0", "decode-0"):
        booked = gpu_seconds(after, engine) - gpu_seconds(before, engine)
        told = after.sum("disagg_engine_step_seconds_total", engine=engine) - before.sum(
            "disagg_engine_step_seconds_total", engine=engine
        )
        say(f"{engine}: booked {booked:.3f} s, told {told:.3f} s")
        assert booked == pytest.approx(told, rel=0.02)
        assert after.sum("disagg_lost_records_total", engine=engine) == 0
        assert after.sum("disagg_span_cut_seconds_total", engine=engine) == 0

    sums = {
        phase: after.sum("disagg_gpu_phase_seconds_total", phase=phase)
        for phase in ("prefill", "decode")
    }
    ratio = sums["prefill"] / sums["decode"]

    def recorded() -> float | None:
        # The whole session lies within 5 m and began together with Prometheus.
        found = query(
            example_pair.prometheus_url, "cluster:disagg_prefill_decode_ratio:ratio_rate5m"
        )
        close = [value for _, value in found if value == pytest.approx(ratio, rel=0.05)]
        return close[0] if close else None

    value = wait_for(recorded, f"a recorded ratio within 5 % of {ratio:.3f}", 30)
    say(f"P:D of the session: {ratio:.3f} on the page, {value:.3f} recorded")
    assert {labels["cluster"] for labels, _ in query(example_pair.prometheus_url, "up")} == {"test"}


def test_a_step_leaves_no_line_in_the_engines_log(example_pair: RealPair) -> None:
    """Iteration details are enabled, but must not log a line for each step."""
    log = (example_pair.run_dir / "logs" / "decode-0.log").read_text(encoding="utf-8")

    assert "Iteration(" not in log
    assert "Application startup complete" in log


def test_latencies_are_counted_for_each_request_and_token(example_pair: RealPair) -> None:
    """Each request has one time to first token and a latency for every further token."""
    node, tokens = example_pair.node, 6
    before = node.wait_settled()

    def counted(page: Page, name: str, **labels: str) -> float:
        name = f"disagg_engine_{name}"
        return page.sum(name, engine="decode-0", **labels) - before.sum(
            name, engine="decode-0", **labels
        )

    load_one(node, "decode-0", tokens)
    finished = "finished_requests_total"
    after = wait_for(
        lambda: page if counted(page := node.page(), finished) == len(PROMPTS) else None,
        "all requests on a page",
        60,
    )

    assert counted(after, "time_to_first_token_seconds_count") == len(PROMPTS)
    assert counted(after, "inter_token_latency_seconds_count") == len(PROMPTS) * (tokens - 1)
    for component in ("queue", "first_decode"):
        part = {"component": component}
        assert counted(after, "ttft_component_requests_total", **part) == len(PROMPTS)
        assert counted(after, "ttft_component_seconds_total", **part) > 0
    # The first token of a prefill engine counts as no user's.
    assert after.sum("disagg_engine_time_to_first_token_seconds_count", engine="prefill-0") == 0
    assert after.sum("disagg_engine_version_known") == 2
