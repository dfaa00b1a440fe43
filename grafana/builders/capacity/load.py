"""Rows of the Capacity dashboard: the load, what was foreseen of it, and what is foreseen now."""

from __future__ import annotations

from typing import Any

from grafana.builders.capacity.queries import M
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import HALF, value
from grafana.builders.panels.palette import GREY, PHASES
from grafana.builders.panels.queries import Ask
from grafana.builders.panels.tables import Column, rows

_FORECAST = "disagg_forecast_tokens_per_second"
_LOAD = "cluster_model_namespace:disagg_phase_tokens:rate1m"


def foreseen() -> Row:
    """Each phase's load, over the band that was forecast for it an hour before."""
    return "Load, over what was foreseen an hour before", [_band("prefill"), _band("decode")]


def ahead() -> Row:
    """What is foreseen now, by horizon, and what stays undecided."""
    said = f"sum by (phase, horizon) ({_FORECAST}{{{M}, quantile=%s}})"
    asks = [Ask(said.replace("%s", f'"{each}"')) for each in ("0.05", "0.5", "0.9", "0.95")]
    return "Ahead", [
        rows(
            "Load to come",
            "Tokens a second in the minute that lies so far ahead: the load that it stays below "
            "with a probability of 5, 50, 90 and 95 %. A horizon that is missing is undecided, for "
            "the reason beside this. Empty without a planner (docs/planner.md).",
            asks,
            [
                Column("phase", "Phase", width=90),
                Column("horizon", "Horizon", width=90),
                *(
                    Column(letter, header, unit="short", decimals=0, width=90)
                    for letter, header in zip("ABCD", ("5 %", "50 %", "90 %", "95 %"), strict=True)
                ),
            ],
            sort="Phase",
            none="no planner runs for this cluster: see docs/planner.md",
            width=HALF,
        ),
        rows(
            "Undecided",
            "What the planner says nothing of, and why: little_history and short_history pass with "
            "time, nothing_lately means that no load was seen, no_capacity that no engine's steps "
            "are known, no_forecast that requests are not counted. Good: nothing but far horizons.",
            [Ask(f"max by (role, horizon, reason) (disagg_plan_undecided{{{M}}})")],
            [
                Column("role", "Role", width=120),
                Column("horizon", "Horizon", width=100),
                Column("reason", "Reason"),
            ],
            sort="Role",
            none="no planner, or nothing is undecided",
            width=HALF,
            runbooks=("DisaggPlanUndecided",),
        ),
    ]


def _band(phase: str) -> Any:
    def said(quantile: str) -> str:
        matchers = f'{M}, phase="{phase}", horizon="1h", quantile="{quantile}"'
        return f"sum ({_FORECAST}{{{matchers}}} offset 1h)"

    panel = lines(
        f"Load of {phase}",
        f"Tokens that {phase} computes a second, and the 5 to 95 % band and the median that were "
        "forecast for that moment an hour before. Good: the load inside the band nine times in "
        "ten. Often outside: plans are as far off. Only the load: no planner ran an hour ago.",
        [
            Ask(f'sum ({_LOAD}{{{M}, phase="{phase}"}})', phase),
            Ask(said("0.95"), "95 %"),
            Ask(said("0.5"), "median"),
            Ask(said("0.05"), "5 %"),
        ],
        decimals=0,
        filled=0,
        colours={phase: PHASES[phase], "95 %": GREY, "median": GREY, "5 %": GREY},
        dashed="median",
        none="no token of what is chosen above was computed in this time",
        runbooks=("DisaggPlanErrorLarge",),
    )
    band = [value("custom.fillBelowTo", "5 %"), value("custom.fillOpacity", 20)]
    edge = [value("custom.lineWidth", 0)]
    panel = panel.override_by_name("95 %", [*band, *edge])
    return panel.override_by_name("5 %", edge)
