"""Rows of the Capacity dashboard: GPUs needed against those that are there, and what is wasted."""

from __future__ import annotations

from typing import Any

from grafana.builders.capacity.queries import C, M
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines, numbers
from grafana.builders.panels.frame import QUARTER, THIRD
from grafana.builders.panels.limits import FORECAST_ERROR, limit
from grafana.builders.panels.palette import PHASES, PLANNED, ROLE_TONES, ROLES
from grafana.builders.panels.queries import Ask
from grafana.builders.panels.tables import Column, rows

_GPUS = "disagg_plan_gpus"
_SHORT = "disagg_plan_shortfall_gpus"
_ERROR = "disagg_plan_error_ratio"
_NO_PLAN = "no plan"


def now() -> Row:
    """The figures of this moment; no header."""
    hour = f'{M}, horizon="1h"'
    return "", [
        numbers(
            "GPUs there",
            "GPUs that serve the model now, by role, as the planner knows them. Empty without a "
            "planner, or if it knows of no engines.",
            [Ask(f'sum by (role) ({_GPUS}{{{M}, kind="current"}})', "{{role}}")],
            decimals=0,
            colours=ROLES,
            none=_NO_PLAN,
        ),
        numbers(
            "Needed in an hour",
            "GPUs that hold the targets an hour from now in 90 % of the futures. Good: no more "
            "than are there.",
            [Ask(f'sum by (role) ({_GPUS}{{{hour}, kind="needed", quantile="0.9"}})', "{{role}}")],
            decimals=0,
            colours=ROLES,
            none=_NO_PLAN,
        ),
        numbers(
            "Planned in an hour",
            "GPUs that the plan would have an hour from now: what is needed, within the bounds of "
            "the planner file, held on to for a while and not moved for little.",
            [Ask(f'sum by (role) ({_GPUS}{{{hour}, kind="recommended"}})', "{{role}}")],
            decimals=0,
            colours=ROLES,
            none=_NO_PLAN,
        ),
        numbers(
            "Short in an hour",
            "GPUs that are missing an hour from now in 90 % of the futures, if nothing is done. "
            "Good: 0.",
            [Ask(f'sum by (role) ({_SHORT}{{{hour}, quantile="0.9"}})', "{{role}}")],
            decimals=0,
            steps=((None, "text"), (1, "orange")),
            none=_NO_PLAN,
            runbooks=("DisaggPlanShort",),
        ),
        numbers(
            "Forecast error",
            "How far off the planner's own forecasts of the last day were, an hour ahead: the sum "
            "of the median's errors over the load that came. A plan is as good as this.",
            [Ask(f"max by (phase) ({_ERROR}{{{hour}}})", "{{phase}}")],
            unit="percentunit",
            decimals=0,
            colours=PHASES,
            none="not known yet",
            runbooks=("DisaggPlanErrorLarge",),
        ),
        numbers(
            "Last good round",
            "How long ago the planner last made a plan. Good: less than its interval, five minutes "
            "if nothing else is said. Empty: no planner, or it never got so far.",
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
    need = f"sum by ({by}) ({_GPUS}{{{whole}, kind=%s}})"
    return "GPUs needed against those there", [
        _role("prefill"),
        _role("decode"),
        _role("mixed"),
        rows(
            "The plan",
            "GPUs of each role at each horizon: needed in half, in 90 and in 95 % of the futures, "
            "what the plan would have, and what is missing if nothing is done, in 90 % of them. "
            "Why: `disagg-node plan`. Empty without a plan.",
            [
                Ask(need.replace("%s", '"needed", quantile="0.5"')),
                Ask(need.replace("%s", '"needed", quantile="0.9"')),
                Ask(need.replace("%s", '"needed", quantile="0.95"')),
                Ask(need.replace("%s", '"recommended"')),
                Ask(f'sum by ({by}) ({_SHORT}{{{whole}, quantile="0.9"}})'),
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
            sort="Role",
            none="no planner, or it made no plan",
        ),
    ]


def wasted() -> Row:
    """What doing nothing costs beside following the plan."""
    kinds = 'kind=~"current|recommended"'
    return "What is wasted, and what is risked", [
        lines(
            "GPUs not needed",
            "GPUs held and not needed, in the mean of all futures and over the plan's horizon: if "
            "nothing is done, and if the plan is followed. The room between them is what the plan "
            "would give back. Good: both low, without seconds over target beside this.",
            [Ask(f"sum by (kind) (disagg_plan_idle_gpus{{{M}, {kinds}}})", "{{kind}}")],
            none="no plan",
            decimals=1,
            width=QUARTER,
            at_least=1,
            colours=PLANNED,
        ),
        lines(
            "GPUs not needed lately",
            "GPUs that the load of the last seven days did not need, in the mean, by role, had "
            "those that are there now run all along. Good: near 0. Empty where it is not known.",
            [Ask(f"sum by (role) (disagg_plan_wasted_gpus{{{M}}})", "{{role}}")],
            none="no planner, or the last week is not known",
            decimals=1,
            width=QUARTER,
            at_least=1,
            colours=ROLES,
        ),
        lines(
            "Time over target to come",
            "Seconds of the plan's horizon with too few engines of some role, in the mean of all "
            "futures: if nothing is done, and if the plan is followed. Good: both near 0.",
            [Ask(f"sum by (kind) (disagg_plan_over_target_seconds{{{M}, {kinds}}})", "{{kind}}")],
            none="no plan",
            unit="s",
            width=QUARTER,
            at_least=60,
            colours=PLANNED,
        ),
        lines(
            "Error of forecasts by horizon",
            "How far off the planner's own forecasts of the last day were, by how far ahead: the "
            "sum of the median's errors over the load that came. It grows with the horizon; above "
            "50 % an hour ahead plans are of little use.",
            [
                Ask(
                    f"max by (phase, horizon) (disagg_plan_error_ratio{{{M}}})",
                    "{{phase}} {{horizon}}",
                )
            ],
            none="no forecast is old enough to be judged",
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
        f"GPUs that serve {role} now, those needed an hour ahead in half and in 95 % of the "
        "futures, and those recommended. Good: what is there between the two. Below 95 %: it may "
        "run short within the hour; far above: GPUs to give. Empty for roles the model has not.",
        [
            Ask(f'sum ({_GPUS}{{{M}, role="{role}", kind="current"}})', "there"),
            Ask(f'sum ({_GPUS}{{{hour}, kind="needed", quantile="0.95"}})', "needed, 95 %"),
            Ask(f'sum ({_GPUS}{{{hour}, kind="needed", quantile="0.5"}})', "needed, 50 %"),
            Ask(f'sum ({_GPUS}{{{hour}, kind="recommended"}})', "recommended"),
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
