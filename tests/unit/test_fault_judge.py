"""How the fault bench judges outcomes, and which faults it draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bench.faults.campaigns import CAMPAIGNS, shortened
from bench.faults.fault import Covered, Expected, Observed, judge, judge_coverage
from bench.faults.play import draw
from bench.faults.scene import STATES
from bench.faults.table import figures, markdown

RECOVERED = Observed(reported_seconds=1.0, recovered_seconds=2.0, answered=9)
DEATH = Expected(state="a restart")
COVERED = Covered(
    100.0, 99.9, 3.0, {"prefill": 10.0, "decode": 50.0}, {"prefill": 9.9, "decode": 50.5}
)


def test_an_expected_outcome_has_no_faults_reported() -> None:
    assert judge(DEATH, RECOVERED) == ()


@pytest.mark.parametrize(
    ("expected", "change", "bad"),
    [
        (DEATH, {"recovered_seconds": None}, "a worker stays dead"),
        (DEATH, {"recovered_seconds": 61.0}, "recovered only after 61.0 s"),
        (DEATH, {"reported_seconds": None}, "never reported: a restart"),
        (DEATH, {"reported_seconds": 10.1}, "reported only after 10.1 s"),
        (Expected(dies=False), {"same_process": False}, "killed although it serves"),
        (DEATH, {"lost": 1}, "1 requests of untouched engines lost"),
        (DEATH, {"moved": ("decode-0",)}, "untouched, but restarted: decode-0"),
        (DEATH, {"doubled": ("w: [1, 2]",)}, "two processes: w: [1, 2]"),
        (DEATH, {"left": ("helper 7",)}, "left behind: helper 7"),
        (DEATH, {"back": ("a_total",)}, "1 counters went back, such as a_total"),
        (DEATH, {"error": "x"}, "could not be judged: x"),
    ],
)
def test_each_deviation_from_the_expected_outcome_is_reported(
    expected: Expected, change: dict[str, Any], bad: str
) -> None:
    assert judge(expected, replace(RECOVERED, **change)) == (bad,)


def test_a_counter_may_reset_only_if_the_fault_destroys_its_state() -> None:
    seen = replace(RECOVERED, back=("disagg_worker_restarts_total{}", "disagg_gpu_x_total{}"))

    assert judge(Expected(resets=("disagg_",)), seen) == ()
    assert judge(Expected(resets=("disagg_worker_",)), seen) == (
        "1 counters went back, such as disagg_gpu_x_total{}",
    )


def test_seconds_that_are_missing_or_in_the_wrong_phase_are_reported() -> None:
    assert judge_coverage(COVERED) == ()
    assert judge_coverage(replace(COVERED, reported=99.4)) == ("99.40 % of GPU-seconds reported",)
    assert judge_coverage(replace(COVERED, reported=100.6)) == ("100.60 % of GPU-seconds reported",)
    assert judge_coverage(replace(COVERED, phases={"decode": 50.0})) == (
        "prefill: 0.00 s reported of 10.00 s (-100.0 %)",
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


def test_every_fault_has_one_name_in_its_campaign_and_a_state_that_a_page_can_report() -> None:
    for campaign in CAMPAIGNS:
        names = [fault.name for fault in campaign.faults]
        assert len(names) == len(set(names))
        assert {fault.expected.state for fault in campaign.faults} <= {"", *STATES}


def test_a_short_run_has_faults_of_every_campaign_that_can_run_here() -> None:
    names = {fault.name for fault in shortened("3").faults}

    for campaign in CAMPAIGNS:
        if campaign.faults and not campaign.lacks():
            assert names & {fault.name for fault in campaign.faults}, campaign.name


def test_the_table_counts_by_fault_and_says_what_was_not_run() -> None:
    seen = {
        "reported_seconds": 1.0,
        "recovered_seconds": 2.0,
        "answered": 5,
        "lost": 1,
        "back": ["a"],
        "doubled": [],
        "left": [],
    }
    bad = ["reported only after 11.0 s", "1 counters went back, such as a"]
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
    assert found["states_reported_after_10_s"] == 1.0
    text = markdown(reports)
    assert "| worker | killed | 2 | 1 | 2.0, 2.0 |" in text
    assert "1 x counters went back" in text
    assert "| disk | not run: no a right |" in text
