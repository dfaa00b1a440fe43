from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_cluster.inspect.report import wording
from disagg_cluster.inspect.report.coverage import incidents
from disagg_cluster.inspect.report.figures import GpuHourPrice, report_of
from disagg_cluster.inspect.report.past import COST, ENERGY, IDLE, SHOWBACK, SPLIT, TOKENS, Firing
from support.histories import ALERT, PERIOD, curve, four_hours, half_a_week

COVERED = (1.0, 0.0, 0.5, 1.0)
KNOWN_HOURS = 2.5
PRICED = curve({("", "", "idle", "USD"): (0.0, 4.0, 4.0, 4.0)}, (1.0,) * 4)


def test_sums_are_over_known_values_only() -> None:
    report = report_of(four_hours(), None, None)

    assert report.covered_ratio == pytest.approx(KNOWN_HOURS / 4)
    assert report.gpu_hours == {
        "prefill": pytest.approx(2 * KNOWN_HOURS),
        "decode": pytest.approx(3 * KNOWN_HOURS),
        "idle": pytest.approx(3 * KNOWN_HOURS),
        "unattributed": 0.0,
    }


def test_a_gap_is_a_gap_and_half_an_hour_weighs_half() -> None:
    report = report_of(four_hours(), None, None)

    assert report.gpus["prefill"] == (2.0, None, pytest.approx(2.0), 2.0)
    assert report.gpus["unattributed"] == (0.0, None, 0.0, 0.0)  # known, and none
    assert report.shares == (0.4, None, pytest.approx(0.4), 0.4)


def test_ratios_are_computed_from_sums_over_the_period() -> None:
    report = report_of(four_hours(), None, None)

    assert report.prefill_share_ratio == pytest.approx(0.4)
    assert report.prefill_decode_ratio == pytest.approx(2 / 3)
    assert report.occupancy_ratio == pytest.approx(5 / 8)


def test_a_ratio_of_less_than_a_gpu_second_has_no_value() -> None:
    """A8: half a GPU-second of each phase is enough for a share, not for a ratio."""
    second = 1 / 3600 / 0.5  # the third hour is known for half of it
    cells = {("m", phase): (None, None, second / 2, None) for phase in ("prefill", "decode")}
    report = report_of(four_hours(**{SPLIT: curve(cells, (0.0, 0.0, 0.5, 0.0))}), None, None)

    assert report.busy_gpu_hours * 3600 == pytest.approx(1.0)
    assert report.prefill_decode_ratio is None


def test_idle_time_is_reported_by_reason_with_its_cost() -> None:
    idle = report_of(four_hours(), None, None).idle

    assert [(share.name, share.gpu_hours, share.cost) for share in idle] == [
        ("no_request", pytest.approx(5.0), pytest.approx(10.0)),
        ("kv_wait", pytest.approx(2.5), pytest.approx(5.0)),
    ]


def test_a_given_price_overrides_the_nodes_prices() -> None:
    report = report_of(four_hours(), None, GpuHourPrice(10.0, "EUR"))

    assert (report.cost, report.currency) == (pytest.approx(200.0), "EUR")
    assert sum(share.cost or 0 for share in report.idle) == pytest.approx(75.0)


def test_time_without_a_price_is_said_not_to_be_in_the_cost() -> None:
    """Of two nodes with 4 GPUs each for two hours, then one, one reports a price from hour 2."""
    prices = {("c", "a"): (None, 2.0, 2.0, 2.0)}
    told = report_of(replace(half_a_week(**{COST: PRICED}), prices=prices), None, None)

    assert told.priced_ratio == pytest.approx((3 * 4) / (4 * 4 + 2 * 4))
    assert ("Cost", "12.00 USD", "of 50.0 % of the GPU time") in wording.summary(told)
    assert any("reported no price" in note for note in told.notes)


def test_a_cost_of_all_time_is_said_to_be_one() -> None:
    prices = {("c", "a"): (2.0,) * 4, ("c", "b"): (2.0, 2.0, None, None)}
    history = half_a_week(**{COST: PRICED})
    for told in (
        report_of(replace(history, prices=prices), None, None),
        report_of(history, None, GpuHourPrice(1.0, "USD")),
    ):
        assert told.priced_ratio == 1.0
        assert [unit for name, _, unit in wording.summary(told) if name == "Cost"] == [
            "of all GPU time"
        ]
        assert not any("price" in note for note in told.notes)


def test_models_are_separate_and_so_are_idle_gpus_without_one() -> None:
    llama, nobody = report_of(four_hours(), None, None).accounts

    assert (llama.model_name, llama.namespace) == ("llama", "search")
    assert llama.tokens["prefill"] == pytest.approx(1000 * 3600 * KNOWN_HOURS)
    assert llama.kilowatt_hours == pytest.approx(KNOWN_HOURS)
    assert llama.cost == pytest.approx(10 * KNOWN_HOURS)
    assert (nobody.model_name, nobody.gpu_hours["idle"]) == ("", pytest.approx(7.5))


def test_tokens_that_nobody_reports_are_unknown_and_not_zero() -> None:
    llama, nobody = report_of(four_hours(), None, None).accounts
    (unrecorded, _) = report_of(four_hours(**{TOKENS: None}), None, None).accounts

    assert llama.tokens["decode"] is None
    assert nobody.tokens == unrecorded.tokens == {"prefill": None, "decode": None}


def test_unrecorded_figures_are_absent_and_noted() -> None:
    history = four_hours(**{COST: None, ENERGY: None, IDLE: None, SHOWBACK: None})

    report = report_of(history, None, None)

    assert (report.cost, report.currency, report.idle, report.accounts) == (None, None, (), ())
    assert report.energy_kilowatt_hours == {}
    assert len(report.notes) == 4


def test_a_period_too_short_for_hourly_means_says_so() -> None:
    history = four_hours()
    (note,) = report_of(history, None, None).notes
    (of_before,) = report_of(replace(history, hourly=frozenset({SHOWBACK})), None, None).notes

    assert "hourly means: how much" in note
    assert "hourly means: Energy, who used what" in of_before


def test_several_currencies_are_not_added_up() -> None:
    rows = {("a", "", "idle", each): (1.0, None, 1.0, 1.0) for each in ("EUR", "USD")}

    report = report_of(four_hours(**{COST: curve(rows, COVERED)}), None, None)

    assert report.cost is None
    assert {share.cost for share in report.idle} == {None}
    assert "EUR, USD" in report.notes[0]


def test_instants_that_touch_are_one_incident() -> None:
    (told,) = report_of(four_hours(), None, None).incidents

    assert (told.alert, told.severity) == ("DisaggWorkerDown", "ticket")
    assert told.whose == "node gpu-7, worker decode-0"
    assert told.start_seconds == PERIOD.start_seconds + 600
    assert told.length_seconds == 600
    assert (told.open_start, told.open_end) == (False, False)


def test_a_longer_gap_separates_incidents_and_the_worst_come_first() -> None:
    ticket = Firing(ALERT, (600.0, 660.0, 780.0, 960.0, 1020.0))  # a step is missing; then two
    page = Firing(ALERT | {"severity": "page", "alertname": "Z"}, (600.0,))

    told = incidents([ticket, page], 60.0, 0.0, 10_000.0)

    assert [(each.severity, each.start_seconds, each.end_seconds) for each in told] == [
        ("page", 600.0, 660.0),
        ("ticket", 600.0, 840.0),
        ("ticket", 960.0, 1080.0),
    ]


def test_an_incident_at_an_edge_may_be_longer() -> None:
    (whole,) = incidents([Firing(ALERT, (30.0, 90.0, 150.0))], 60.0, 0.0, 180.0)

    assert (whole.open_start, whole.open_end, whole.end_seconds) == (True, True, 180.0)
