"""`python -m grafana.builders [FOLDER]`: write every dashboard as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grafana.builders.capacity import dashboard as capacity
from grafana.builders.cluster import dashboard as cluster
from grafana.builders.engines import dashboard as engines
from grafana.builders.exporter import dashboard as exporter
from grafana.builders.fleet import dashboard as fleet
from grafana.builders.node import dashboard as node
from grafana.builders.panels.board import as_text

DASHBOARDS: dict[str, Callable[[], dict[str, Any]]] = {
    "fleet": fleet.dashboard,
    "cluster": cluster.dashboard,
    "node": node.dashboard,
    "engines": engines.dashboard,
    "capacity": capacity.dashboard,
    "exporter": exporter.dashboard,
}


def main(folder: Path) -> None:
    """Write `<name>.json` for each dashboard into `folder`, and create the folder if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, build in DASHBOARDS.items():
        (folder / f"{name}.json").write_text(as_text(build()), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "dashboards")
