"""What is logged of an engine's page: each fault once, whatever values it contains."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from disagg_cluster.telemetry.pages.page_reader import ScrapeJob, ScrapeResult
from disagg_cluster.telemetry.pages.page_state import PageState, page_health
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.engine_pages.router import parse_router_page
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.unreachable import EngineUnreachable, ResponseError

LOOK = ScrapeJob("a", "http://127.0.0.1:1", "/metrics", (), False, 0)
_log = logging.getLogger("disagg_node")


def warnings(caplog: pytest.LogCaptureFixture, errors: list[DisaggError]) -> list[str]:
    watched = PageState(page_health("a", _log))
    with caplog.at_level(logging.INFO):
        for error in errors:
            watched.ingest(ScrapeResult(LOOK, error=error), 0)
    return caplog.messages


def fault(page: str) -> DisaggError:
    with pytest.raises(PageError) as caught:
        parse_page(page.encode(), 0)
    return caught.value


def router_fault(page: str) -> DisaggError:
    with pytest.raises(PageError) as caught:
        parse_router_page(page.encode(), 0)
    return caught.value


# Faults whose text changes at each scrape, by its number.
CHANGING: dict[str, Callable[[int], str]] = {
    "a counter below nothing": lambda n: f"vllm:generation_tokens_total -{n + 1}\n",
    "another counter each time": lambda n: (
        ("vllm:generation_tokens_total", "vllm:num_preemptions_total")[n % 2] + " -1\n"
    ),
    "a counter without end": lambda n: f"vllm:generation_tokens_total {n + 1}e300\n",
    "a value that is none": lambda n: f"vllm:generation_tokens_total 1 x{n}\n",
    "a sample twice": lambda n: (
        f"vllm:{('generation_tokens_total', 'num_preemptions_total')[n % 2]} 1\n" * 2
    ),
    "two spellings": lambda n: "".join(
        f"vllm{sign}{('num_requests_running', 'num_requests_waiting')[n % 2]} 1\n" for sign in ":_"
    ),
    "buckets in no order": lambda n: "".join(
        f'vllm:{("time_to_first_token", "inter_token_latency")[n % 2]}_seconds_bucket{{le="{le}"}} '
        f"{count}\n"
        for le, count in (("1", 2), ("+Inf", 1))
    ),
}


@pytest.mark.parametrize("what", CHANGING)
def test_a_fault_whose_value_changes_at_each_scrape_is_logged_once(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [fault(CHANGING[what](number)) for number in range(20)]

    assert len({str(error) for error in texts}) > 1
    assert len(warnings(caplog, texts)) == 1


def test_an_http_status_that_changes_at_each_scrape_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors: list[DisaggError] = [
        EngineUnreachable(f"u: answers {status}", cause="u: does not answer 200")
        for status in range(400, 420)
    ]

    assert warnings(caplog, errors) == ["a: metrics page: u: answers 401"]


def test_each_change_of_fault_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    fell, cut = fault("vllm:generation_tokens_total -1\n"), fault("vllm:num_requests_running 1")

    assert len(warnings(caplog, [fell, fell, cut, cut, fell])) == 3


def test_the_cause_of_a_router_page_fault_omits_the_value() -> None:
    faults = {
        router_fault(f"vllm_router_pd_requests_total {value}\n").cause for value in (-1, -2, "x")
    }

    assert len(faults) == 2


def test_an_error_without_values_is_its_own_cause() -> None:
    assert ResponseError("the answer is cut off").cause == "the answer is cut off"


def looked_at(watched: PageState, tokens: int | None, t_ns: int) -> int | None:
    """When the engine last worked, after a scrape that found so many tokens, or no page."""
    if tokens is None:
        seen = ScrapeResult(LOOK, error=EngineUnreachable("no answer in time"))
    else:
        page = parse_page(f"vllm:generation_tokens_total {tokens}\n".encode(), t_ns)
        seen = ScrapeResult(LOOK, page=page)
    watched.ingest(seen, t_ns)
    return watched.worked_ns


def test_an_engine_last_worked_at_the_page_before_its_counters_last_changed() -> None:
    watched = PageState(page_health("a", _log))
    jobs = [(5, 1), (5, 2), (9, 3), (9, 4), (None, 5), (12, 6)]

    worked = [looked_at(watched, tokens, t_ns) for tokens, t_ns in jobs]

    assert worked == [None, None, 2, 2, 2, 4]


def test_the_last_work_of_a_process_is_not_kept_for_its_successor() -> None:
    watched = PageState(page_health("a", _log))
    looked_at(watched, 5, 1)
    looked_at(watched, 9, 2)
    watched.rest()

    assert looked_at(watched, 70, 3) is None
