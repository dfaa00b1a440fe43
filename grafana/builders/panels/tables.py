"""Tables whose rows are joined from several queries by the labels they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana.builders.panels.frame import FULL, Steps, framed, thresholds, value
from grafana.builders.panels.queries import Ask, queries
from grafana_foundation_sdk.builders import common as common_parts
from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.models import dashboard as models

NOT_KNOWN = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `source` is a label's name, or the letter of the query whose values it shows.

    `bar` draws a share from 0 to 1 as a bar of that colour, or in the colours of `steps`; `texts`
    names values (value → text, colour); `link` is the target of a click on a value. A `hidden`
    column is there for the links of others.
    """

    source: str
    header: str
    unit: str = ""
    decimals: int | None = None
    width: int | None = None
    bar: str = ""
    steps: Steps = ()
    texts: tuple[tuple[str, str, str], ...] = ()
    link: str = ""
    hidden: bool = False

    @property
    def field(self) -> str:
        """Grafana's name of the column before it is renamed."""
        return f"Value #{self.source}" if len(self.source) == 1 else self.source

    def properties(self) -> list[models.DynamicConfigValue]:
        """The properties of its override."""
        said: dict[str, Any] = {}
        if self.unit:
            said["unit"] = self.unit
        if self.decimals is not None:
            said["decimals"] = self.decimals
        if self.width is not None:
            said["custom.width"] = self.width
        if self.hidden:
            said["custom.hidden"] = True
        if self.bar:
            said["custom.cellOptions"] = {"type": "gauge", "mode": "basic"}
            said["color"] = {"mode": "fixed", "fixedColor": self.bar}
            said |= {"min": 0, "max": 1, "unit": "percentunit", "decimals": 0}
            said.setdefault("custom.width", 140)
        if self.steps:
            said["color"] = {"mode": "thresholds"}
            said["thresholds"] = thresholds(self.steps).build()
        if self.texts:
            options = {value: {"text": text, "color": colour} for value, text, colour in self.texts}
            said["mappings"] = [{"type": "value", "options": options}]
            said["custom.cellOptions"] = {"type": "color-text"}
        if self.link:
            said["links"] = [{"title": f"Open {self.header}", "url": self.link}]
        return [value(name, each) for name, each in said.items()]


HIDDEN_CLUSTER = Column("cluster", "Cluster", hidden=True)
"""For tables without room for it: which cluster a node or engine is of."""


def coloured_words(colours: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """The `texts` of a column of words: each unchanged, in its colour."""
    return tuple((word, word, colour) for word, colour in colours.items())


def rows(
    title: str,
    description: str,
    asks: Sequence[Ask],
    columns: Sequence[Column],
    *,
    sort: str,
    ascending: bool = False,
    width: int = FULL,
    height: int = 9,
    none: str | None = None,
    runbooks: Sequence[str] = (),
) -> table.Panel:
    """A table of current values with `columns` in this order, sorted by `sort`.

    That is the header of a column, or a label without one: then rows come in its ascending order,
    and a click on a header still sorts them anew.
    """
    panel = table.Panel().targets(queries(asks, "table"))
    panel = framed(panel, title, description, (width, height), runbooks, none)
    by_label = sort not in {column.header for column in columns}
    if not by_label:
        panel = panel.sort_by(
            [common_parts.TableSortByFieldState().display_name(sort).desc(not ascending)]
        )
    shown = {column.field: place for place, column in enumerate(columns)}
    organize: dict[str, dict[str, Any]] = {
        "includeByName": dict.fromkeys(shown, True),
        "indexByName": shown,
        "renameByName": {column.field: column.header for column in columns},
    }
    steps = [models.DataTransformerConfig(id_val="merge", options={})] if len(asks) > 1 else []
    if by_label:
        steps.append(
            models.DataTransformerConfig(
                id_val="sortBy", options={"fields": {}, "sort": [{"field": sort, "desc": False}]}
            )
        )
    if len(asks) == 1:
        # Grafana names the value column of a single query just "Value".
        organize = {
            key: {("Value" if name == "Value #A" else name): value for name, value in said.items()}
            for key, said in organize.items()
        }
    steps.append(models.DataTransformerConfig(id_val="organize", options=organize))
    panel = panel.transformations(steps)
    # A cell without a value shows a dash, not the reason why the whole table may be empty.
    panel = panel.override_by_regexp(".*", [value("noValue", NOT_KNOWN)])
    for column in columns:
        if said := column.properties():
            panel = panel.override_by_name(column.header, said)
    return panel
