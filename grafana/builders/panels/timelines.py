"""Panels with one bar over time per series: a state by name, or a share in shades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana.builders.panels.frame import FULL, framed, legend, thresholds
from grafana.builders.panels.palette import TONES
from grafana.builders.panels.queries import Ask, queries
from grafana_foundation_sdk.builders import common as common_parts
from grafana_foundation_sdk.builders import dashboard as parts
from grafana_foundation_sdk.builders import statetimeline, statushistory
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models


def states(
    title: str,
    description: str,
    asks: Sequence[Ask],
    names: Mapping[str, str],
    *,
    width: int = FULL,
    height: int = 9,
    none: str | None = None,
    runbooks: Sequence[str] = (),
) -> statetimeline.Panel:
    """A bar over time for each series; the value n means the n-th of `names` (name → colour)."""
    panel = statetimeline.Panel().targets(queries(asks))
    panel = framed(panel, title, description, (width, height), runbooks, none)
    panel = panel.show_value(common.VisibilityMode.NEVER).merge_values(True).row_height(0.8)
    panel = panel.fill_opacity(85).line_width(0)
    panel = panel.color_scheme(parts.FieldColor().mode(models.FieldColorModeId.FIXED))
    shown = {
        str(number): models.ValueMappingResult(text=name, color=colour, index=number)
        for number, (name, colour) in enumerate(names.items(), start=1)
    }
    return panel.mappings([models.ValueMap(options=shown)]).legend(legend(beside=False))


def coded(selector: str, label: str, names: Mapping[str, str], by: str) -> str:
    """For `states`: map info series, which differ in `label`, to the number of the label's value.

    `selector` has %s where the matcher of the label goes.
    """
    codes = " or ".join(
        f"max by ({by}) ({selector.replace('%s', matcher)}) * {number}"
        for number, matcher in enumerate((f'{label}="{name}"' for name in names), start=1)
    )
    return f"max by ({by}) ({codes})"


def heat(
    title: str,
    description: str,
    asks: Sequence[Ask],
    *,
    link: tuple[str, str],
    width: int = FULL,
    height: int = 10,
    none: str | None = None,
    runbooks: Sequence[str] = (),
) -> statushistory.Panel:
    """A row of cells over time for each series of shares: the closer to 1, the brighter.

    `link` is a title and the target of a click on a cell.
    """
    panel = statushistory.Panel().targets(queries(asks)).unit("percentunit").decimals(0)
    panel = framed(panel, title, description, (width, height), runbooks, none)
    panel = panel.show_value(common.VisibilityMode.NEVER).row_height(0.9).col_width(1)
    panel = panel.fill_opacity(100).line_width(0).min(0).max(1)
    panel = panel.max_data_points(120)
    panel = panel.color_scheme(parts.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
    panel = panel.data_links([_link(*link)])
    panel = panel.thresholds(thresholds(TONES))
    return panel.legend(legend(beside=False)).tooltip(common_parts.VizTooltipOptions())


def _link(title: str, url: str) -> parts.DashboardLink:
    return parts.DashboardLink(title).url(url)
