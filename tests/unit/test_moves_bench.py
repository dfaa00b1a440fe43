"""The figures and the table of the bench of moves under faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.faults.fault import Observed
from bench.faults_control.kills import Outcome
from bench.faults_control.kinds import HOST_KINDS, KINDS
from bench.faults_control.real_engines import REAL_KINDS
from bench.faults_control.table import BARS, NEVER_SECONDS, figures, markdown

SEEN = Observed(reported_seconds=9.0, recovered_seconds=3.0, answered=7)
GOOD = Outcome("daemon killed", SEEN, "done", "serves", 40, 0, waited_seconds=8.5)
NEVER = replace(
    GOOD, observed=Observed(recovered_seconds=1.0, lost=2), bad=("never reported", "a | b")
)
FAULTY_BEHAVIOURS = {"lying_engines": 5, "false_switched": 0, "honest_not_proven": 0}


def found(*outcomes: Outcome, **parts: Any) -> dict[str, Any]:
    faults = {"outcomes": outcomes, "not_run": {}, "left_processes": 0}
    return {"lies": FAULTY_BEHAVIOURS, "faults": faults, **parts}


def test_every_bar_has_a_figure_and_figures_of_parts_not_run_are_none() -> None:
    assert BARS.keys() <= figures({"lies": FAULTY_BEHAVIOURS}).keys()
    assert {
        key for key, value in figures({"lies": FAULTY_BEHAVIOURS}).items() if value is not None
    } == set(FAULTY_BEHAVIOURS)


def test_a_state_that_is_never_reported_is_above_every_bar() -> None:
    result = figures(found(GOOD, NEVER))

    assert result["longest_reported_seconds"] == NEVER_SECONDS > BARS["longest_reported_seconds"]
    assert (result["bad_outcomes"], result["requests_of_untouched_engines_lost"]) == (1, 2)


def test_the_time_a_daemon_waited_for_a_core_is_reported_separately() -> None:
    result = figures(found(GOOD))

    assert result["longest_reported_seconds"] == 9.0
    assert result["longest_reported_with_a_core_seconds"] == 0.5


def test_the_table_has_a_row_for_each_kind_run_or_not_run() -> None:
    faults = found(GOOD, NEVER)
    faults["faults"]["not_run"] = {"disk full": "no mount"}
    lines = markdown(faults).splitlines()

    assert len(lines) == 4
    assert lines[2].startswith("| daemon killed | 2 | 1 | 2, 0 | 9.0, 9.0; ")
    assert lines[2].endswith("| never reported; a / b |")
    assert lines[3].startswith("| disk full | not run: no mount |")
    assert {line.count("|") for line in lines} == {9}


def test_names_of_kinds_are_unique() -> None:
    names = [kind.name for kind in (*KINDS, *HOST_KINDS)]

    assert len(set(names)) == len(names)
    assert len({kind.name for kind in REAL_KINDS}) == len(REAL_KINDS)
