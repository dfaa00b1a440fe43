"""Rows of the Capacity dashboard: GPUs needed against those there are, and what is wasted."""

from __future__ import annotations

from typing import Any

from grafana.builders.capacity.queries import C, M, in_order
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines, numbers
from grafana.builders.panels.frame import QUARTER, THIRD
from grafana.builders.panels.limits import FORECAST_ERROR, limit
from grafana.builders.panels.palette import PHASES, PLANNED, ROLE_TONES, ROLES
from grafana.builders.panels.queries import Ask, once
from grafana.builders.panels.tables import Column, rows

_GPUS = "disagg_plan_gpus"
_SHORT = "disagg_plan_shortfall_gpus"
_ERROR = "disagg_plan_error_ratio"
_NO_PLAN = "no plan"


def now() -> Row:
    """Current figures; no header."""
    hour = f'{M}, horizon="1h"'
    return "", [
        numbers(
            "GPUs there",
            "GPUs that serve the model now, by role, as the planner knows them. Empty without a "
            "planner, or if it knows no engines.",
            [Ask(_sum(_GPUS, f'{M}, kind="current"', "role"), "{{role}}")],
            decimals=0,
            colours=ROLES,
            none=_NO_PLAN,
        ),
        numbers(
            "Needed in an hour",
            "GPUs needed in an hour to meet the latency targets in 90 % of the futures. Good: no "
            "more than are there.",
            [Ask(_sum(_GPUS, f'{hour}, kind="needed", quantile="0.9"', "role"), "{{role}}")],
            decimals=0,
            colours=ROLES,
            none=_NO_PLAN,
        ),
        numbers(
            "Planned in an hour",
            "GPUs that the plan recommends for an hour from now: those needed, within the planner "
            "file's bounds, kept for a while after need falls, and not moved for a small gain.",
            [Ask(_sum(_GPUS, f'{hour}, kind="recommended"', "role"), "{{role}}")],
            decimals=0,
            colours=ROLES,
            none=_NO_PLAN,
        ),
        numbers(
            "Short in an hour",
            "GPUs missing in an hour to meet the targets in 90 % of the futures, if nothing is "
            "done. Good: 0.",
            [Ask(_sum(_SHORT, f'{hour}, quantile="0.9"', "role"), "{{role}}")],
            decimals=0,
            steps=((None, "text"), (1, "orange")),
            none=_NO_PLAN,
            runbooks=("DisaggPlanShort",),
        ),
        numbers(
            "Forecast error",
            "Error of the planner's own forecasts of the last day, an hour ahead: the sum of the "
            "median's absolute errors over the actual load. A plan is only as good as this.",
            [Ask(f"max by (phase) ({_ERROR}{{{hour}}})", "{{phase}}")],
            unit="percentunit",
            decimals=0,
            colours=PHASES,
            none="not known yet",
            runbooks=("DisaggPlanErrorLarge",),
        ),
        numbers(
            "Last good round",
            "How long ago the planner last made a plan. Good: less than its interval (five "
            "minutes by default). Empty: no planner, or it has not made a plan yet.",
            [
                Ask(
                    "time() - max (disagg_collector_last_success_timestamp_seconds"
                    f'{{{C}, collector="planner:plan"}})'
                )
            ],
            unit="s",
            decimals=0,
            steps=((None, "text"), (900, "orange")),
            none="no planner",
            runbooks=("DisaggPlannerDown", "DisaggPlannerFailing"),
        ),
    ]


def needed() -> Row:
    """GPUs of each role over time, and the whole plan as a table."""
    whole = f'{M}, horizon!=""'
    by = "role, gpu_name, horizon"

    def need(kind: str) -> Ask:
        return Ask(in_order(_sum(_GPUS, f"{whole}, kind={kind}", by), "role"))

    return "GPUs needed against those there", [
        _role("prefill"),
        _role("decode"),
        _role("mixed"),
        rows(
            "The plan",
            "GPUs of each role at each horizon: needed to meet the targets in 50, 90 and 95 % of "
            "the futures, recommended by the plan, and missing for 90 % of them if nothing is "
            "done. `disagg-node plan` gives the reasons. Empty without a plan.",
            [
                need('"needed", quantile="0.5"'),
                need('"needed", quantile="0.9"'),
                need('"needed", quantile="0.95"'),
                need('"recommended"'),
                Ask(in_order(_sum(_SHORT, f'{whole}, quantile="0.9"', by), "role")),
            ],
            [
                Column("role", "Role"),
                Column("gpu_name", "GPU"),
                Column("horizon", "Horizon"),
                Column("A", "50 %", unit="short"),
                Column("B", "90 %", unit="short"),
                Column("C", "95 %", unit="short"),
                Column("D", "Recommended", unit="short"),
                Column("E", "Short", unit="short"),
            ],
            sort="order",
            height=18,
            none="no planner runs, or it has made no plan yet",
        ),
    ]


def wasted() -> Row:
    """The cost of doing nothing against the cost of following the plan."""
    of_kinds = f'{M}, kind=~"current|recommended"'
    return "What is wasted, and what is risked", [
        lines(
            "GPUs not needed",
            "GPUs held but not needed, averaged over all futures and the plan's horizon: if "
            "nothing is done, and if the plan is followed. The gap between the lines is what the "
            "plan would release. Good: both low, without seconds over target in the panel beside.",
            [Ask(_sum("disagg_plan_idle_gpus", of_kinds, "kind"), "{{kind}}")],
            none="no plan",
            decimals=1,
            width=QUARTER,
            at_least=1,
            colours=PLANNED,
        ),
        lines(
            "GPUs not needed lately",
            "Mean number of GPUs, by role, that the load of the last seven days did not need, as "
            "if today's GPUs had run all that time. Good: near 0. Empty where this is unknown.",
            [Ask(_sum("disagg_plan_wasted_gpus", M, "role"), "{{role}}")],
            none="no planner runs, or it has no data of the last week",
            decimals=1,
            width=QUARTER,
            at_least=1,
            colours=ROLES,
        ),
        lines(
            "Time over target to come",
            "Seconds of the plan's horizon in which some role has too few engines, averaged over "
            "all futures: if nothing is done, and if the plan is followed. Good: both near 0.",
            [Ask(_sum("disagg_plan_over_target_seconds", of_kinds, "kind"), "{{kind}}")],
            none="no plan",
            unit="s",
            width=QUARTER,
            at_least=60,
            colours=PLANNED,
        ),
        lines(
            "Error of forecasts by horizon",
            "Error of the planner's own forecasts of the last day, by horizon: the sum of the "
            "median's absolute errors over the actual load. It grows with the horizon. Above 50 % "
            "an hour ahead, plans are of little use.",
            [
                Ask(
                    f"max by (phase, horizon) (disagg_plan_error_ratio{{{M}}})",
                    "{{phase}} {{horizon}}",
                )
            ],
            none="no forecast is old enough to be evaluated yet",
            unit="percentunit",
            steps=limit(FORECAST_ERROR),
            width=QUARTER,
            filled=0,
            tones=ROLE_TONES,
        ),
    ]


def _role(role: str) -> Any:
    hour = f'{M}, role="{role}", horizon="1h"'
    return lines(
        f"GPUs for {role}",
        f"GPUs serving {role} now, needed an hour ahead in 50 % and in 95 % of the futures, and "
        "recommended. Good: the current number is between the two. Below 95 %: it may run short "
        "within the hour. Far above: GPUs to spare. Empty for roles that the model does not "
        "have.",
        [
            Ask(_sum(_GPUS, f'{M}, role="{role}", kind="current"'), "there"),
            Ask(_sum(_GPUS, f'{hour}, kind="needed", quantile="0.95"'), "needed, 95 %"),
            Ask(_sum(_GPUS, f'{hour}, kind="needed", quantile="0.5"'), "needed, 50 %"),
            Ask(_sum(_GPUS, f'{hour}, kind="recommended"'), "recommended"),
        ],
        decimals=0,
        width=THIRD,
        filled=0,
        at_least=1,
        none=f"no planner, or no {role} engines of this model",
        colours=PLANNED,
        dashed="there",
        runbooks=("DisaggPlanShort",),
    )


def _sum(metric: str, matchers: str, by: str = "") -> str:
    return f"sum {f'by ({by}) ' if by else ''}({once(metric, matchers)})"
