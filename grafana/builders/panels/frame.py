"""The parts that all panels share: title, description, place, links, legend, colours, bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from grafana.builders.panels.queries import DATASOURCE
from grafana_foundation_sdk.builders import common as common_parts
from grafana_foundation_sdk.builders import dashboard as parts
from grafana_foundation_sdk.builders import stat, statetimeline, statushistory, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

FULL, HALF, THIRD, QUARTER = 24, 12, 8, 6
Steps = Sequence[tuple[float | None, str]]
Drawn = TypeVar("Drawn", timeseries.Panel, stat.Panel, statetimeline.Panel, statushistory.Panel)
Shown = TypeVar(
    "Shown",
    timeseries.Panel,
    stat.Panel,
    statetimeline.Panel,
    statushistory.Panel,
    table.Panel,
)


def framed(
    panel: Shown,
    title: str,
    description: str,
    size: tuple[int, int],
    runbooks: Sequence[str],
    none: str | None,
) -> Shown:
    """The panel with its title, description, size, and a link for each alert.

    `none` is shown while the panel is empty and says why it is.
    """
    panel = panel.title(title).description(description).datasource(DATASOURCE)
    panel = panel.span(size[0]).height(size[1])
    if none is not None:
        panel = panel.no_value(none)
    if runbooks:
        panel = panel.links([_to_runbook(alert) for alert in runbooks])
    return panel


def shaded(panel: Drawn, tones: Mapping[str, str]) -> Drawn:
    """Give all series whose names match a pattern shades of one colour."""
    for pattern, colour in tones.items():
        shades = [value("color", {"mode": "shades", "fixedColor": colour})]
        panel = panel.override_by_regexp(pattern, shades)
    return panel


def coloured(panel: Drawn, colours: Mapping[str, str]) -> Drawn:
    """Give each series a fixed colour by its name, or by a pattern that begins with ^."""
    for name, colour in colours.items():
        fixed = [value("color", {"mode": "fixed", "fixedColor": colour})]
        by_pattern = name.startswith("^")
        panel = (panel.override_by_regexp if by_pattern else panel.override_by_name)(name, fixed)
    return panel


def thresholds(steps: Steps) -> parts.ThresholdsConfig:
    """Colours from a bound upwards; the first bound is None, for everything below."""
    return (
        parts.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=bound, color=colour) for bound, colour in steps])
    )


def legend(*, beside: bool) -> common_parts.VizLegendOptions:
    """A table with figures beside a wide panel, a list below a narrow one."""
    shown = common_parts.VizLegendOptions().show_legend(True)
    if not beside:
        shown = shown.display_mode(common.LegendDisplayMode.LIST).calcs([])
        return shown.placement(common.LegendPlacement.BOTTOM)
    shown = shown.display_mode(common.LegendDisplayMode.TABLE).calcs(["mean", "lastNotNull"])
    return shown.placement(common.LegendPlacement.RIGHT)


def value(name: str, said: Any) -> models.DynamicConfigValue:
    """One property of an override."""
    return models.DynamicConfigValue(id_val=name, value=said)


def _to_runbook(alert: str) -> parts.DashboardLink:
    link = parts.DashboardLink(f"Runbook: {alert}").type(models.DashboardLinkType.LINK)
    return link.url(f"${{runbooks}}/{alert}.md").target_blank(True)
