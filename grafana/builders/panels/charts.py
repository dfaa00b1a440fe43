"""Panels of figures: current numbers, and values over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana.builders.panels.frame import (
    HALF,
    Steps,
    coloured,
    framed,
    legend,
    shaded,
    thresholds,
    value,
)
from grafana.builders.panels.palette import TEAL
from grafana.builders.panels.queries import Ask, queries
from grafana_foundation_sdk.builders import common as common_parts
from grafana_foundation_sdk.builders import dashboard as parts
from grafana_foundation_sdk.builders import stat, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

NEUTRAL = parts.FieldColor().mode(models.FieldColorModeId.SHADES).fixed_color(TEAL)
"""Shades of one colour, for series of no phase and no role."""


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
    steps: Steps = ((None, "text"),),
    none: str | None = None,
    runbooks: Sequence[str] = (),
) -> stat.Panel:
    """Current numbers. `steps` colour values from a bound on; `colours` colour series by name."""
    panel = stat.Panel().unit(unit).targets(queries(asks, "instant"))
    panel = framed(panel, title, description, (width, height), runbooks, none)
    panel = panel.graph_mode(common.BigValueGraphMode.NONE)
    panel = panel.reduce_options(common_parts.ReduceDataOptions().calcs(["lastNotNull"]))
    panel = panel.thresholds(thresholds(steps))
    if len(asks) > 1 or asks[0].legend:
        panel = panel.text_mode(common.BigValueTextMode.VALUE_AND_NAME)
        panel = panel.text(common_parts.VizTextDisplayOptions().title_size(14).value_size(32))
    if len(asks) > 1:
        panel = panel.orientation(common.VizOrientation.VERTICAL)
    if decimals is not None:
        panel = panel.decimals(decimals)
    return coloured(panel, colours or {})


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
    tones: Mapping[str, str] | None = None,
    stacked: bool = False,
    filled: int = 8,
    top: float | None = None,
    log: int | None = None,
    dashed: str | None = None,
    at_least: float | None = None,
    both_sides: float | None = None,
    steps: Steps = (),
    right: str | None = None,
    none: str | None = None,
    runbooks: Sequence[str] = (),
) -> timeseries.Panel:
    """Values over time from 0 up, or on a log axis to the base `log`.

    Stacked areas have no edge, so do not stack series that are mostly 0: they would be invisible.
    The axis ends at `top`; or reaches at least `at_least`, so that tiny values look tiny; or at
    least `both_sides` above and below a centred 0. `steps` are bounds, drawn as dashed lines in
    their colours. Series whose name matches the pattern `dashed` are references, drawn dashed and
    without a fill. The series `right` has its own axis on the right, as its scale differs.
    `colours` colours series by name, `tones` all that match a pattern; without either, all are
    shades of one colour. `none` is shown while there is no series.
    """
    panel = timeseries.Panel().unit(unit).targets(queries(asks))
    panel = framed(panel, title, description, (width, height), runbooks, none)
    panel = panel.fill_opacity(70 if stacked else filled).line_width(0 if stacked else 1.5)
    panel = panel.show_points(common.VisibilityMode.NEVER)
    panel = panel.tooltip(
        common_parts.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )
    panel = panel.legend(legend(beside=width >= HALF))
    if log is not None:
        axis = common_parts.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(log)
        panel = panel.scale_distribution(axis)
    elif both_sides is not None:
        panel = panel.axis_centered_zero(True).axis_soft_min(-both_sides).axis_soft_max(both_sides)
    else:
        panel = panel.min(0)
    if stacked:
        normal = common_parts.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
        panel = panel.stacking(normal)
    if top is not None:
        panel = panel.max(top)
    if at_least is not None:
        panel = panel.axis_soft_max(at_least)
    if decimals is not None:
        panel = panel.decimals(decimals)
    if steps:
        bounds = common_parts.GraphThresholdsStyleConfig()
        bounds = bounds.mode(common.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds(thresholds(steps)).thresholds_style(bounds)
    if colours is None and tones is None:
        # Grafana's default palette includes yellow, blue and orange, which mean phases here.
        panel = panel.color_scheme(NEUTRAL)
    panel = coloured(shaded(panel, tones or {}), colours or {})
    if dashed is not None:
        panel = panel.override_by_regexp(
            dashed,
            [
                value("custom.lineStyle", {"fill": "dash", "dash": [6, 4]}),
                value("custom.fillOpacity", 0),
                value("custom.stacking", {"mode": "none", "group": "B"}),
                value("custom.lineWidth", 1),
            ],
        )
    if right is not None:
        placed = [value("custom.axisPlacement", "right"), value("custom.axisColorMode", "series")]
        panel = panel.override_by_name(right, placed)
    return panel
