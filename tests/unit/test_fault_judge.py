"""What the fault bench holds to be bad, and which faults it draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bench.faults.campaigns import CAMPAIGNS, shortened
from bench.faults.fault import Covered, Expected, Observed, judge, judge_coverage
from bench.faults.play import draw
from bench.faults.scene import TOLD
from bench.faults.table import figures, markdown

WELL = Observed(told_seconds=1.0, well_seconds=2.0, answered=9)
TOLD_DEATH = Expected(told="a restart")
COVERED = Covered(
    100.0, 99.9, 3.0, {"prefill": 10.0, "decode": 50.0}, {"prefill": 9.9, "decode": 50.5}
)


def test_nothing_is_bad_about_what_went_as_expected() -> None:
    assert judge(TOLD_DEATH, WELL) == ()


@pytest.mark.parametrize(
    ("expected", "change", "bad"),
    [
        (TOLD_DEATH, {"well_seconds": None}, "a worker stays dead"),
        (TOLD_DEATH, {"well_seconds": 61.0}, "well after 61.0 s only"),
        (TOLD_DEATH, {"told_seconds": None}, "never told: a restart"),
        (TOLD_DEATH, {"told_seconds": 10.1}, "told after 10.1 s only"),
        (Expected(dies=False), {"same_process": False}, "killed although it serves"),
        (TOLD_DEATH, {"lost": 1}, "1 requests of untouched engines lost"),
        (TOLD_DEATH, {"moved": ("decode-0",)}, "untouched, but started anew: decode-0"),
        (TOLD_DEATH, {"doubled": ("w: [1, 2]",)}, "two processes: w: [1, 2]"),
        (TOLD_DEATH, {"left": ("helper 7",)}, "left behind: helper 7"),
        (TOLD_DEATH, {"back": ("a_total",)}, "1 counters went back, such as a_total"),
        (TOLD_DEATH, {"error": "x"}, "could not be judged: x"),
    ],
)
def test_each_thing_that_may_be_bad_is_told(
    expected: Expected, change: dict[str, Any], bad: str
) -> None:
    assert judge(expected, replace(WELL, **change)) == (bad,)


def test_a_counter_may_begin_anew_only_where_what_keeps_it_was_destroyed() -> None:
    seen = replace(WELL, back=("disagg_worker_restarts_total{}", "disagg_gpu_x_total{}"))

    assert judge(Expected(resets=("disagg_",)), seen) == ()
    assert judge(Expected(resets=("disagg_worker_",)), seen) == (
        "1 counters went back, such as disagg_gpu_x_total{}",
    )


def test_seconds_that_are_missing_or_in_the_wrong_phase_are_told() -> None:
    assert judge_coverage(COVERED) == ()
    assert judge_coverage(replace(COVERED, told=99.4)) == ("99.40 % of GPU-seconds told",)
    assert judge_coverage(replace(COVERED, told=100.6)) == ("100.60 % of GPU-seconds told",)
    assert judge_coverage(replace(COVERED, phases={"decode": 50.0})) == (
        "prefill: 0.00 s told of 10.00 s (-100.0 %)",
    )


def test_a_campaign_draws_every_fault_and_the_same_ones_for_the_same_seed() -> None:
    for campaign in CAMPAIGNS:
        if not campaign.faults:
            continue
        at_once = campaign.victims if campaign.at_once else 1
        drawn = draw(campaign.faults, campaign.rounds, "7", at_once)
        assert drawn == draw(campaign.faults, campaign.rounds, "7", at_once)
        assert {fault for faults in drawn for fault in faults} == set(campaign.faults)
        assert {len(faults) for faults in drawn} == {at_once}


def test_all_campaigns_together_are_five_hundred_faults() -> None:
    faults = sum(c.rounds * (c.victims if c.at_once else 1) for c in CAMPAIGNS)

    assert faults >= 500


def test_every_fault_has_one_name_in_its_campaign_and_a_state_that_a_page_can_tell() -> None:
    for campaign in CAMPAIGNS:
        names = [fault.name for fault in campaign.faults]
        assert len(names) == len(set(names))
        assert {fault.expected.told for fault in campaign.faults} <= {"", *TOLD}


def test_a_short_run_has_quick_faults_of_every_campaign_that_can_run_here() -> None:
    names = {fault.name for fault in shortened("3").faults}

    for campaign in CAMPAIGNS:
        if campaign.faults and not campaign.lacks():
            assert names & {fault.name for fault in campaign.faults}, campaign.name


def test_the_table_counts_by_fault_and_says_what_was_not_run() -> None:
    seen = {
        "told_seconds": 1.0,
        "well_seconds": 2.0,
        "answered": 5,
        "lost": 1,
        "back": ["a"],
        "doubled": [],
        "left": [],
    }
    bad = ["told after 11.0 s only", "1 counters went back, such as a"]
    outcomes = [
        {"fault": "killed", "observed": seen, "bad": []},
        {"fault": "killed", "observed": seen, "bad": bad},
    ]
    reports = [
        {"campaign": "worker", "outcomes": outcomes},
        {"campaign": "disk", "outcomes": [], "lacks": "a right"},
    ]

    found = figures(reports)
    assert (found["faults"], found["bad_outcomes"]) == (2.0, 1.0)
    assert found["requests_of_untouched_engines_lost"] == 2.0
    assert found["states_told_after_10_s"] == 1.0
    text = markdown(reports)
    assert "| worker | killed | 2 | 1 | 2.0, 2.0 |" in text
    assert "1 x counters went back" in text
    assert "| disk | not run: no a right |" in text
