"""The dashboards that we ship, as files for a Grafana."""

from __future__ import annotations

import json
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

PROVIDER = "provisioning/dashboards/disagg-node.yaml"
DATASOURCE = "provisioning/datasources/disagg-node.yaml"


def grafana_files(
    shipped: Traversable, folder: Path, datasource: str | None, runbooks: str
) -> dict[str, str]:
    """What an exported folder holds: text by path within it.

    `folder` is where the files will lie: Grafana is told to read the dashboards from there. With a
    `datasource` the dashboards open on it; without, a data source of our own is provisioned too,
    and Grafana opens them on its default. `runbooks` is where their links to runbooks begin.
    """
    files = {
        f"dashboards/{entry.name}": _set(entry.read_text(encoding="utf-8"), datasource, runbooks)
        for entry in sorted(shipped.joinpath("dashboards").iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".json")
    }
    provider = yaml.safe_load(shipped.joinpath(PROVIDER).read_text(encoding="utf-8"))
    provider["providers"][0]["options"]["path"] = str(folder / "dashboards")
    files[PROVIDER] = yaml.safe_dump(provider, sort_keys=False)
    if datasource is None:
        files[DATASOURCE] = shipped.joinpath(DATASOURCE).read_text(encoding="utf-8")
    return files


def _set(text: str, datasource: str | None, runbooks: str) -> str:
    dashboard = json.loads(text)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "datasource" and datasource is not None:
            variable["current"] = {"selected": True, "text": datasource, "value": datasource}
        if variable["name"] == "runbooks":
            variable["query"] = runbooks
    return json.dumps(dashboard, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
