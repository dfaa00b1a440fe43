"""What panels show of given series, before the real promtool."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.dashboards import CHOICES, filled, marks, queries
from support.panel_values import check, evaluate

pytestmark = pytest.mark.prometheus

NODE = 'cluster="c",node="demo-node"'
ENGINE = f"{NODE},engine="


def test_engines_known_from_outside_or_not_at_all_are_counted_without_followers(
    tmp_path: Path,
) -> None:
    """A page was read by two pods of the daemon; what does not answer has no method either."""
    told = {
        f"disagg_attribution_info{{{ENGINE}{engine},method={method}}}": "1x40"
        for engine, method in (
            ('"steps"', '"steps"'),
            ('"page"', '"page",pod="a"'),
            ('"page"', '"page",pod="b"'),
            ('"unknown"', '"none"'),
            ('"starts"', '"none"'),
            ('"follows"', '"follower"'),
            ('"undivided"', '"none"'),
        )
    }
    told |= {
        f'disagg_engine_up{{{ENGINE}"{engine}"}}': f"{up}x40"
        for engine, up in (("unknown", 1), ("starts", 0), ("undivided", 1))
    }
    told |= {
        f'disagg_engine_follower_info{{{ENGINE}"{engine}",leader="l"}}': "1x40"
        for engine in ("follows", "undivided")
    }

    check(tmp_path, told, {"Not from steps": [("{}", 2.0)]})


def test_learned_limits_are_those_of_the_chosen_role(tmp_path: Path) -> None:
    told = {
        f"disagg_engine_{series}": "1x40"
        for engine, role in (("p", "prefill"), ("d", "decode"))
        for series in (
            f'info{{{ENGINE}"{engine}",role="{role}"}}',
            f'kv_cache_tokens{{{ENGINE}"{engine}"}}',
        )
    }

    row = [(f'{{{ENGINE}"d"}}', 1.0)]
    check(tmp_path, told, {"Learned limits": row}, {**CHOICES, "role": "decode"})


@pytest.mark.parametrize("scrape_seconds", [15, 30, 60])
def test_the_table_of_engines_is_full_at_every_scrape_interval(
    tmp_path: Path, scrape_seconds: int
) -> None:
    """An engine that is gone has no row of its last rate."""
    tokens = f'disagg_engine_phase_tokens_total{{role="decode",phase="decode",{ENGINE}'
    samples = 1200 // scrape_seconds
    told = {
        f'{tokens}"a"}}': f"0+{7 * scrape_seconds}x{samples}",
        f'{tokens}"gone"}}': f"0+{7 * scrape_seconds}x{480 // scrape_seconds} stale",
    }

    row = [(f'{{{ENGINE}"a"}}', 7.0)]
    scrape = f"{scrape_seconds}s"
    check(tmp_path, told, {"Engines, the fullest first": row}, scrape=scrape)


def test_requests_are_those_of_the_best_source_that_counts_any_now(tmp_path: Path) -> None:
    """As in the rules. A frontend that is not on the users' path counts 0; an idle model has 0."""
    source = 'disagg_request_ends_total{engine_namespace="n",cluster="c",reason="stop",model_name='
    told = {
        f'{source}"bypassed",source="frontend"}}': "5x40",
        f'{source}"bypassed",source="router"}}': "0+30x40",
        f'{source}"bypassed",source="engine"}}': "0+60x40",
        f'{source}"told",source="frontend"}}': "0+15x40",
        f'{source}"told",source="engine"}}': "0+60x40",
        f'{source}"direct",source="frontend"}}': "5x40",
        f'{source}"direct",source="router"}}': "7x40",
        f'{source}"direct",source="engine"}}': "0+60x40",
    }
    ends = next(each for each in queries("cluster") if "disagg_request_ends" in each.expr)

    for model, rate in (("bypassed", 2.0), ("told", 1.0), ("direct", 4.0), (".+", 7.0)):
        asked = filled(ends.expr, {**CHOICES, "model": model})
        evaluate(tmp_path, told, {asked: [("{}", rate)]})


def test_requests_of_an_idle_model_are_0(tmp_path: Path) -> None:
    source = 'disagg_request_ends_total{engine_namespace="n",cluster="c",reason="stop",model_name='
    told = {f'{source}"m",source="{each}"}}': "5x40" for each in ("frontend", "router")}
    ends = next(each for each in queries("cluster") if "disagg_request_ends" in each.expr)

    evaluate(tmp_path, told, {ends.text: [("{}", 0.0)]})


def test_refusals_by_engines_do_not_count_where_a_frontend_counts_requests(tmp_path: Path) -> None:
    """It may have sent them to another engine."""
    of = 'engine_namespace="n",cluster="c",model_name='
    told = {
        f'disagg_request_arrivals_total{{{of}"m",source="frontend"}}': "0+60x40",
        f'disagg_request_rejections_total{{{of}"m",source="frontend",reason="overload"}}': "3x40",
        f'disagg_request_rejections_total{{{of}"m",source="engine",reason="overload"}}': "0+15x40",
        f'disagg_request_rejections_total{{{of}"o",source="engine",reason="overload"}}': "0+30x40",
    }
    refused = next(each for each in queries("cluster") if "disagg_request_rej" in each.expr)

    evaluate(tmp_path, told, {refused.text: [("{}", 2.0)]})


def test_starts_of_daemons_are_marked_whatever_their_counters_do(tmp_path: Path) -> None:
    """In the same series, and in that of a new pod; that of a planner is no daemon's."""
    begun = 'process_start_time_seconds{job="disagg-node",cluster="c"'
    told = {
        f'{begun},node="restarted"}}': "100x37 580x4",
        f'{begun},node="replaced",pod="a"}}': "100x35 stale",
        f'{begun},node="replaced",pod="b"}}': "_x38 575x4",
        f'{begun},node="steady"}}': "100x41",
        f"{begun}}}": "580x41",
    }
    [starts] = [each for each in marks("exporter") if each.panel == "Daemon starts"]
    asked = filled(starts.expr, {**CHOICES, "node": ".*"})

    found = [('{cluster="c",node="restarted"}', 580.0), ('{cluster="c",node="replaced"}', 575.0)]
    evaluate(tmp_path, told, {asked: found})
