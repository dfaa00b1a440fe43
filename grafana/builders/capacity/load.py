"""Rows of the Capacity dashboard: the load, its earlier forecast, and the current forecast."""

from __future__ import annotations

from typing import Any

from grafana.builders.capacity.queries import LOAD, M, in_order
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import HALF, value
from grafana.builders.panels.palette import GREY, PHASES
from grafana.builders.panels.queries import Ask, once
from grafana.builders.panels.tables import Column, rows

_FORECAST = "disagg_forecast_tokens_per_second"


def foreseen() -> Row:
    """Each phase's load, over the band that was forecast for it an hour earlier."""
    return "Load, over what was foreseen an hour before", [_band("prefill"), _band("decode")]


def ahead() -> Row:
    """The current forecast by horizon, and what is undecided."""

    def said(quantile: str) -> Ask:
        matchers = f'{M}, quantile="{quantile}"'
        return Ask(in_order(f"sum by (phase, horizon) ({once(_FORECAST, matchers)})", "phase"))

    return "Ahead", [
        rows(
            "Load to come",
            "Forecast tokens per second in the minute at each horizon: the load stays below the "
            "value with a probability of 5, 50, 90 and 95 %. A missing horizon is undecided, for "
            "the reason shown beside. Empty without a planner (docs/planner.md).",
            [said(each) for each in ("0.05", "0.5", "0.9", "0.95")],
            [
                Column("phase", "Phase", width=90),
                Column("horizon", "Horizon", width=90),
                *(
                    Column(letter, header, unit="short", decimals=1, width=90)
                    for letter, header in zip("ABCD", ("5 %", "50 %", "90 %", "95 %"), strict=True)
                ),
            ],
            sort="order",
            height=12,
            none="no planner runs for this cluster: see docs/planner.md",
            width=HALF,
        ),
        rows(
            "Undecided",
            "What the planner cannot forecast or plan, and why. little_history and short_history "
            "go away with time; nothing_lately: no recent load was observed; no_capacity: no "
            "engine's step times are known; no_forecast: requests are not counted. Good: only "
            "distant horizons.",
            [
                Ask(
                    in_order(
                        f"max by (role, horizon, reason) (disagg_plan_undecided{{{M}}})", "role"
                    )
                )
            ],
            [
                Column("role", "Role", width=120),
                Column("horizon", "Horizon", width=100),
                Column("reason", "Reason"),
            ],
            sort="order",
            height=12,
            none="nothing is undecided, or no planner runs",
            width=HALF,
            runbooks=("DisaggPlanUndecided",),
        ),
    ]


def _band(phase: str) -> Any:
    def said(quantile: str) -> str:
        matchers = f'{M}, phase="{phase}", horizon="1h", quantile="{quantile}"'
        return f"sum ({once(_FORECAST, matchers, ' offset 1h')})"

    panel = lines(
        f"Load of {phase}",
        f"Tokens per second that {phase} computes, with the 5 to 95 % band and the median "
        "forecast an hour earlier. Good: the load is inside the band nine times in ten. Bad: "
        "often outside; plans are equally wrong. If only the load is shown, no planner ran an "
        "hour earlier.",
        [
            Ask(f'sum ({LOAD}{{{M}, phase="{phase}"}})', phase),
            Ask(said("0.95"), "95 %"),
            Ask(said("0.5"), "median"),
            Ask(said("0.05"), "5 %"),
        ],
        decimals=1,
        filled=0,
        colours={phase: PHASES[phase], "95 %": GREY, "median": GREY, "5 %": GREY},
        dashed="median",
        none="no tokens in this time range for the selection above",
        runbooks=("DisaggPlanErrorLarge",),
    )
    band = [value("custom.fillBelowTo", "5 %"), value("custom.fillOpacity", 20)]
    edge = [value("custom.lineWidth", 0)]
    panel = panel.override_by_name("95 %", [*band, *edge])
    return panel.override_by_name("5 %", edge)
