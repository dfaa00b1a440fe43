"""The metrics reference as Markdown.

`python -m disagg_exporter.metrics.reference > docs/metrics.md`
"""

from __future__ import annotations

import sys

from disagg_exporter.metrics.family import Data, Family
from disagg_exporter.metrics.table import FAMILIES, LABELS

_HEAD = """\
# Metrics

Written by `python -m disagg_exporter.metrics.reference` from the table of the exporter; change
that table, not this file.

Units are base units, ratios run from 0 to 1, and times of day are Unix seconds. A counter counts
since the daemon started and never goes down while it lives. A number that is not known is absent,
never 0. `cluster`, `node`, `instance` and `job` come from the scrape and are never set here; only
the planner's verdicts have the `node` of whom they are about.
"""

_STALE = "Absent as soon as the daemon's picture of the node is stale."
_OF_PLANNER = (
    "On the page of `disagg-node planner` only, beside its collectors, process and build. "
    "Absent once its last good round is three intervals old."
)
_LASTING = "Also shown when the daemon's picture of the node is stale."


def reference() -> str:
    """Return the whole document."""
    parts = [_HEAD]
    for data in Data:
        families = [family for family in FAMILIES if family.data is data]
        lines = [
            f"## {data}",
            "",
            _OF_PLANNER if data is Data.PLANNER else _LASTING if data.lasting else _STALE,
            "",
            "| name | type | labels | meaning |",
            "| --- | --- | --- | --- |",
            *(_row(family) for family in families),
            "",
        ]
        parts.append("\n".join(lines))
    labels = (f"| `{name}` | {meaning} |" for name, meaning in LABELS.items())
    parts.append("\n".join(["## Labels", "", "| label | meaning |", "| --- | --- |", *labels, ""]))
    return "\n".join(parts)


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels) or "none"
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"


if __name__ == "__main__":
    sys.stdout.write(reference())
