"""The report, from a real Prometheus whose past was written by hand, to a page in a browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from disagg_cluster.inspect.report.figures import report_of
from disagg_cluster.inspect.report.history import NoHistoryError, Reader
from disagg_cluster.inspect.report.past import (
    ACCOUNTED,
    COST,
    ENERGY,
    HOURLY,
    IDLE,
    NODE_GPUS,
    NODE_PRICE,
    SHOWBACK,
    SPLIT,
    TOKENS,
    UNOBSERVED,
    Period,
    period_until,
    utc,
)
from disagg_cluster.prometheus.prometheus_api import PrometheusError
from support.backfill import At, Past, openmetrics, prometheus_with
from support.browser import CONTRAST, chromium

pytestmark = pytest.mark.prometheus

MINUTE, HOUR, DAY = 60, 3600, 86_400
SINCE = 36 * HOUR
BUCKET = 900
GAP_HOURS = 3
SHORT = {"young": 30, "brief": 20}
"""Clusters that ran for so many minutes: until now, and in the middle of an hour of this day."""
GPUS = {"prefill": 2.0, "decode": 3.0, "idle": 2.5, "unattributed": 0.5}


@pytest.fixture(scope="module")
def now() -> int:
    """An instant that all of this module agrees on."""
    return int(time.time()) // BUCKET * BUCKET


@pytest.fixture(scope="module")
def url(now: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that evaluated our rules each minute for two days, but for three hours."""
    gap = range(now - 20 * HOUR, now - (20 - GAP_HOURS) * HOUR)

    def steady(value: float) -> At:
        return lambda instant: None if instant - 1 in gap else value

    east = {"cluster": "east"}
    whose = {"model_name": "llama", "engine_namespace": "search"}
    past = [
        Past(SPLIT, east | {"role": "decode", "phase": phase, "gpu_name": name}, steady(value / 2))
        for phase, value in GPUS.items()
        for name in ("H100", "H200")
    ]
    past += [
        Past(SPLIT, {"cluster": "west", "role": "decode", "phase": "decode"}, steady(100.0)),
        Past(ACCOUNTED, east, steady(8.0)),
        Past(ACCOUNTED, {"cluster": "west"}, steady(100.0)),
        Past(UNOBSERVED, east | {"reason": "no_daemon"}, steady(1.0)),
        Past(NODE_GPUS, east | {"node": "gpu-7"}, steady(9.0)),
        Past(NODE_GPUS, {"cluster": "west", "node": "gpu-7"}, steady(100.0)),
        Past(NODE_PRICE, east | {"node": "gpu-7", "currency": "USD"}, steady(2.0)),
        Past(IDLE, east | {"role": "decode", "reason": "no_request"}, steady(2.5)),
        Past(TOKENS, east | whose | {"phase": "decode"}, steady(1000.0)),
        Past(ENERGY, east | whose | {"role": "decode", "phase": "decode"}, steady(700.0)),
    ]
    for phase, value in GPUS.items():
        labels = east | whose | {"role": "decode", "phase": phase}
        past.append(Past(SHOWBACK, labels, steady(value)))
        past.append(Past(COST, labels | {"currency": "USD"}, steady(value * 2)))
    # Its rules are of before until twelve hours ago, when they recorded hourly means alone.
    old = {"cluster": "old", "role": "decode", "phase": "decode"}
    past += [
        Past(SPLIT, old, steady(2.0)),
        Past(HOURLY[SHOWBACK], old | whose, steady(2.0)),
        Past(SHOWBACK, old | whose, lambda at: 2.0 if at > now - 12 * HOUR else None),
    ]
    first = {"young": now - 30 * MINUTE, "brief": now // HOUR * HOUR - 3 * HOUR + 5 * MINUTE}
    for cluster, minutes in SHORT.items():
        lived = range(first[cluster], first[cluster] + minutes * MINUTE)
        past += [
            Past(
                rule,
                {"cluster": cluster, "role": "decode", "phase": "decode"},
                lambda at, lived=lived, value=value: value if at - 1 in lived else None,
            )
            for rule, value in ((SPLIT, 2.0), (SHOWBACK, 2.0), (TOKENS, 1000.0), (ENERGY, 700.0))
        ]
    # Its Prometheus evaluates every minute until ten hours ago, and every five minutes since.
    changed = {"cluster": "changed", "role": "decode", "phase": "decode"}
    past.append(
        Past(SPLIT, changed, lambda at: 4.0 if at <= now - 10 * HOUR or not at % 300 else None)
    )
    # Its Prometheus evaluates every five minutes.
    slow = {"cluster": "slow", "role": "decode", "phase": "decode"}
    past.append(Past(SPLIT, slow, lambda at: None if at % 300 else steady(4.0)(at)))
    alert = {"alertname": "DisaggWorkerDown", "severity": "ticket", "node": "gpu-7"}
    begun, ended = now - 10 * HOUR, now - 8 * HOUR
    past.append(
        Past(
            "ALERTS",
            east | alert | {"alertstate": "firing"},
            lambda instant: 1.0 if begun <= instant < ended else None,
        )
    )
    text = openmetrics(past, range(now - 40 * HOUR, now + 1, MINUTE))
    with prometheus_with(text, tmp_path_factory.mktemp("report")) as running:
        yield running


def test_the_report_sums_match_the_written_samples(url: str, now: int) -> None:
    known_hours = SINCE / HOUR - GAP_HOURS
    period = period_until(now, SINCE)
    report = report_of(Reader(url, "east").read(period), "east", None)

    assert period == Period(now - SINCE, now, BUCKET)
    assert report.gpu_hours == {
        phase: pytest.approx(value * known_hours, rel=1e-6) for phase, value in GPUS.items()
    }
    assert report.covered_ratio == pytest.approx(known_hours / 36, rel=1e-6)
    assert report.cost == pytest.approx(16 * known_hours, rel=1e-6)
    assert report.energy_kilowatt_hours == {"decode": pytest.approx(0.7 * known_hours, rel=1e-6)}
    assert report.accounts[0].tokens["decode"] == pytest.approx(1000 * 3600 * known_hours, rel=1e-6)
    assert [(share.name, share.gpu_hours) for share in report.idle] == [
        ("no_request", pytest.approx(2.5 * known_hours, rel=1e-6))
    ]
    assert report.coverage is not None
    assert report.coverage.expected_gpu_hours == 9 * 36
    assert report.coverage.accounted_ratio == pytest.approx(8 / 9 * known_hours / 36, rel=1e-6)
    assert report.coverage.unobserved == (("no_daemon", pytest.approx(known_hours, rel=1e-6)),)
    assert report.coverage.missing_gpu_hours == pytest.approx(9 * GAP_HOURS, rel=1e-6)
    assert report.coverage.nodes_part_time == 1
    known = [value for value in report.gpus["decode"] if value is not None]
    assert len(report.gpus["decode"]) - len(known) == GAP_HOURS * HOUR / BUCKET
    assert known == [pytest.approx(3.0)] * len(known)


def test_an_alert_is_reported_as_an_incident(url: str, now: int) -> None:
    (told,) = report_of(Reader(url).read(period_until(now, SINCE)), None, None).incidents

    assert (told.alert, told.whose) == ("DisaggWorkerDown", "cluster east, node gpu-7")
    assert told.start_seconds == now - 10 * HOUR
    # The written series has no staleness marker, so Prometheus looks back five minutes.
    assert 0 <= told.end_seconds - (now - 8 * HOUR) <= 6 * MINUTE


def test_all_clusters_are_summed_unless_one_is_selected(url: str, now: int) -> None:
    period = period_until(now, SINCE)
    all_of_them = report_of(Reader(url).read(period), None, None)
    east = report_of(Reader(url, "east").read(period), "east", None)

    assert (east.priced_ratio, all_of_them.priced_ratio) == (1.0, pytest.approx(9 / 109))
    more = all_of_them.gpu_hours["decode"] - east.gpu_hours["decode"]
    others = (100.0 + 2.0 + 4.0) * (36 - GAP_HOURS) + 2.0 * sum(SHORT.values()) / 60
    changed = report_of(Reader(url, "changed").read(period), "changed", None)
    assert more == pytest.approx(others + changed.gpu_hours["decode"], rel=1e-6)


def test_hourly_means_of_older_rules_are_used_where_nothing_else_is_recorded(
    url: str, now: int
) -> None:
    history = Reader(url, "old").read(period_until(now, SINCE))
    (account,) = report_of(history, "old", None).accounts

    assert history.hourly == {SHOWBACK}
    assert account.gpu_hours["decode"] == pytest.approx(2.0 * (36 - GAP_HOURS), rel=1e-6)


@pytest.mark.parametrize(("cluster", "since"), [("young", HOUR), ("brief", 7 * DAY)])
def test_a_cluster_of_some_minutes_has_its_tokens_and_energy(
    url: str, now: int, cluster: str, since: int
) -> None:
    """In buckets of a minute, each with one sample; and in an hour whose second half has none."""
    minutes, period = SHORT[cluster], period_until(now, since)
    report = report_of(Reader(url, cluster).read(period), cluster, None)

    assert report.gpu_hours["decode"] == pytest.approx(2.0 * minutes / 60, rel=1e-6)
    assert report.energy_kilowatt_hours == {"decode": pytest.approx(0.7 * minutes / 60, rel=1e-6)}
    assert report.accounts[0].tokens["decode"] == pytest.approx(60_000 * minutes, rel=1e-6)


def test_clusters_that_evaluate_at_different_intervals_add_up(url: str, now: int) -> None:
    period = period_until(now, SINCE)
    each = {
        cluster: report_of(Reader(url, cluster).read(period), cluster, None).gpu_hours["decode"]
        for cluster in ("east", "west", "old", "slow", "changed", *SHORT)
    }
    together = report_of(Reader(url).read(period), None, None)

    assert each["slow"] == pytest.approx(4.0 * (36 - GAP_HOURS), rel=1e-6)
    assert together.gpu_hours["decode"] == pytest.approx(sum(each.values()), rel=1e-6)


@pytest.mark.parametrize("since", [7 * DAY, SINCE, 12 * HOUR])
def test_hours_count_in_full_after_the_interval_of_the_rules_was_changed(
    url: str, now: int, since: int
) -> None:
    """In buckets of an hour, from 40 hours ago, of a quarter of an hour and of five minutes.

    One of them lies on both sides of the change.
    """
    period = period_until(now, since)
    report = report_of(Reader(url, "changed").read(period), "changed", None)

    hours = min(period.end_seconds - (now - 40 * HOUR), since) / HOUR
    bucket = period.bucket_seconds / HOUR
    assert report.gpu_hours["decode"] == pytest.approx(4.0 * hours, abs=4.0 * bucket)
    assert report.covered_ratio == pytest.approx(hours * HOUR / since, abs=bucket * HOUR / since)


def test_a_cluster_with_older_rules_is_in_the_accounts_of_all_clusters(url: str, now: int) -> None:
    """East has recorded who used what all the time, old only hourly means of it."""
    accounts = report_of(Reader(url).read(period_until(now, SINCE)), None, None).accounts

    (account,) = (each for each in accounts if each.model_name == "llama")
    assert account.gpu_hours["decode"] == pytest.approx((3.0 + 2.0) * (36 - GAP_HOURS), rel=1e-6)


def test_an_unknown_cluster_is_an_error_that_names_it_and_the_known_ones(
    url: str, now: int
) -> None:
    said = "of cluster 'a\"b' in this period, .*: it knows '.*'east'"
    with pytest.raises(NoHistoryError, match=said):
        Reader(url, 'a"b').read(period_until(now, SINCE))


def test_a_fleet_younger_than_the_last_whole_bucket_is_told_to_ask_for_less(
    url: str, now: int
) -> None:
    """In a report on a week the last hour is left out, until it is over."""
    began = now - SHORT["young"] * MINUTE  # its first sample is a minute later

    with pytest.raises(NoHistoryError, match=f"since {utc(began + MINUTE)} UTC.*a shorter --since"):
        Reader(url, "young").read(period_until(began, SINCE))


def test_a_prometheus_that_does_not_answer_is_an_error(now: int) -> None:
    with pytest.raises(PrometheusError, match=r"no answer from http://127\.0\.0\.1:9"):
        Reader("http://127.0.0.1:9").read(period_until(now, SINCE))


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["report", *args], prog_name="disagg-node")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_markdown(url: str) -> None:
    code, out, err = run("--since", "36h", "--prometheus", url, "--cluster", "east")

    # Progress of so short a report is for a terminal; the mail of a cron job should be empty.
    assert (code, err) == (0, "")
    assert out.startswith("# Prefill and decode in east\n")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--since", "soon"), "is no span of time"),
        (("-o", "report.pdf"), ".html or a .md"),
        (("--header", "nothing"), "is no header"),
    ],
)
def test_a_wrong_command_line_is_bad_usage(args: tuple[str, ...], words: str) -> None:
    code, _, err = run("--prometheus", "http://127.0.0.1:9", *args)

    assert (code, words in err) == (2, True)


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    code, _, err = run("--prometheus", "http://127.0.0.1:9", "-o", "/proc/report.html")

    assert code == 1
    assert "cannot write /proc/report.html: " in err
    assert "reading" not in err

    file = tmp_path / "report.md"
    run("--prometheus", "http://127.0.0.1:9", "-o", str(file))
    assert not file.exists()


@pytest.mark.browser
def test_the_page_is_readable_in_light_and_dark_and_loads_nothing(url: str, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert run("--since", "36h", "--prometheus", url, "-o", str(file))[:2] == (0, f"{file}\n")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 400, "height": 800})
        complaints: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())

        assert page.get_by_role("img").count() == 2
        assert page.get_by_role("table").count() == 6
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(CONTRAST) == []
        assert asked == [file.as_uri()]
        assert complaints == []
