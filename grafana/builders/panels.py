"""The panels we draw: a title, what good and bad look like, queries, a unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Literal, TypeVar

from grafana_foundation_sdk.builders import common as common_parts
from grafana_foundation_sdk.builders import dashboard as dashboard_parts
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
FULL, HALF, THIRD = 24, 12, 8
Shown = TypeVar("Shown", timeseries.Panel, stat.Panel, statetimeline.Panel)


@dataclass(frozen=True, slots=True)
class Ask:
    """One query and how its series are called."""

    expr: str
    legend: str = ""


def each(names: Iterable[str], expr: str) -> list[Ask]:
    """One query for each name, put where `expr` has %s: series then come in this order."""
    return [Ask(expr.replace("%s", name), name) for name in names]


def queries(
    asks: Sequence[Ask], kind: Literal["range", "instant", "table"] = "range"
) -> list[Builder[Dataquery]]:
    """The targets A, B, C… of a panel; `table` is an instant with a column for each label."""
    targets: list[Builder[Dataquery]] = []
    for letter, ask in zip(ascii_uppercase, asks, strict=False):
        target = prometheus.Dataquery().expr(ask.expr).ref_id(letter).datasource(DATASOURCE)
        target = target.legend_format(ask.legend or "__auto")
        target = target.range() if kind == "range" else target.instant()
        format_ = PromQueryFormat.TABLE if kind == "table" else PromQueryFormat.TIME_SERIES
        targets.append(target.format(format_))
    return targets


def numbers(
    title: str,
    description: str,
    asks: Sequence[Ask],
    *,
    unit: str = "short",
    decimals: int | None = None,
    width: int = 4,
    height: int = 4,
    colours: Mapping[str, str] | None = None,
    steps: Sequence[tuple[float | None, str]] = ((None, "text"),),
    none: str | None = None,
) -> stat.Panel:
    """Numbers of this moment. `steps` colour a value from its bound on; `colours` a name."""
    panel = stat.Panel().unit(unit).targets(queries(asks, "instant"))
    panel = _framed(panel, title, description, width, height)
    panel = panel.graph_mode(common.BigValueGraphMode.NONE)
    panel = panel.reduce_options(common_parts.ReduceDataOptions().calcs(["lastNotNull"]))
    panel = panel.thresholds(thresholds(steps))
    if len(asks) > 1 or colours:
        panel = panel.text_mode(common.BigValueTextMode.VALUE_AND_NAME)
        panel = panel.text(common_parts.VizTextDisplayOptions().title_size(14).value_size(32))
        panel = panel.orientation(common.VizOrientation.VERTICAL)
    if decimals is not None:
        panel = panel.decimals(decimals)
    if none is not None:
        panel = panel.no_value(none)
    return _coloured(panel, colours or {})


def lines(
    title: str,
    description: str,
    asks: Sequence[Ask],
    *,
    unit: str = "short",
    decimals: int | None = None,
    width: int = HALF,
    height: int = 8,
    colours: Mapping[str, str] | None = None,
    stacked: bool = False,
    filled: int = 8,
    top: float | None = None,
    log: int | None = None,
    dashed: str | None = None,
    at_least: float | None = None,
    right: str | None = None,
) -> timeseries.Panel:
    """Values over time from 0 up, or on a log axis to the base `log`.

    Stacked areas have no edge, so use no stack for what is mostly 0: it would not be seen at all.
    The axis ends at `top`, or reaches at least to `at_least`, so that nothing looks like nothing.
    Series whose name matches the pattern `dashed` are references: dashed, without a fill. The
    series `right` has an axis of its own there, as its values are of another size.
    """
    panel = timeseries.Panel().unit(unit).targets(queries(asks))
    panel = _framed(panel, title, description, width, height)
    panel = panel.fill_opacity(70 if stacked else filled).line_width(0 if stacked else 1.5)
    panel = panel.show_points(common.VisibilityMode.NEVER)
    panel = panel.tooltip(
        common_parts.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )
    panel = panel.legend(_legend(beside=width >= HALF))
    if log is None:
        panel = panel.min(0)
    else:
        axis = common_parts.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(log)
        panel = panel.scale_distribution(axis)
    if stacked:
        normal = common_parts.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
        panel = panel.stacking(normal)
    if top is not None:
        panel = panel.max(top)
    if at_least is not None:
        panel = panel.axis_soft_max(at_least)
    if decimals is not None:
        panel = panel.decimals(decimals)
    panel = _coloured(panel, colours or {})
    if dashed is not None:
        panel = panel.override_by_regexp(
            dashed,
            [
                _value("custom.lineStyle", {"fill": "dash", "dash": [6, 4]}),
                _value("custom.fillOpacity", 0),
                _value("custom.stacking", {"mode": "none", "group": "B"}),
                _value("custom.lineWidth", 1),
            ],
        )
    if right is not None:
        placed = [_value("custom.axisPlacement", "right"), _value("custom.axisColorMode", "series")]
        panel = panel.override_by_name(right, placed)
    return panel


def states(
    title: str,
    description: str,
    asks: Sequence[Ask],
    names: Mapping[str, str],
    *,
    width: int = FULL,
    height: int = 9,
) -> statetimeline.Panel:
    """A bar over time for each series, whose value n means the n-th of `names` (name → colour)."""
    panel = statetimeline.Panel().targets(queries(asks))
    panel = _framed(panel, title, description, width, height)
    panel = panel.show_value(common.VisibilityMode.NEVER).merge_values(True).row_height(0.8)
    panel = panel.fill_opacity(85).line_width(0)
    panel = panel.color_scheme(dashboard_parts.FieldColor().mode(models.FieldColorModeId.FIXED))
    shown = {
        str(number): models.ValueMappingResult(text=name, color=colour, index=number)
        for number, (name, colour) in enumerate(names.items(), start=1)
    }
    return panel.mappings([models.ValueMap(options=shown)]).legend(_legend(beside=False))


def thresholds(steps: Sequence[tuple[float | None, str]]) -> dashboard_parts.ThresholdsConfig:
    """Colours from their bounds on; the first bound is None, which is everything below."""
    return (
        dashboard_parts.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=bound, color=colour) for bound, colour in steps])
    )


def _legend(*, beside: bool) -> common_parts.VizLegendOptions:
    """A table with figures beside a wide panel, a list below a narrow one."""
    legend = common_parts.VizLegendOptions().show_legend(True)
    if not beside:
        legend = legend.display_mode(common.LegendDisplayMode.LIST).calcs([])
        return legend.placement(common.LegendPlacement.BOTTOM)
    legend = legend.display_mode(common.LegendDisplayMode.TABLE).calcs(["mean", "lastNotNull"])
    return legend.placement(common.LegendPlacement.RIGHT)


def _framed(panel: Shown, title: str, description: str, width: int, height: int) -> Shown:
    panel = panel.title(title).description(description).datasource(DATASOURCE)
    return panel.span(width).height(height)


def _coloured(panel: Shown, colours: Mapping[str, str]) -> Shown:
    for name, colour in colours.items():
        fixed = _value("color", {"mode": "fixed", "fixedColor": colour})
        panel = panel.override_by_name(name, [fixed])
    return panel


def _value(name: str, value: Any) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val=name, value=value)
