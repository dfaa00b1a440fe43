"""Exports files without overwriting changes of others; the dashboards for Grafana."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from disagg_cluster.deploy.runbook_links import RunbookLinks
from disagg_cluster.deploy.yaml_text import quoted
from disagg_cluster.host.files.atomic_write import make_folder_for_all, write_for_all
from disagg_exporter.errors import DisaggError


class ExportError(DisaggError):
    """A file that cannot or must not be written; the text says which and why."""


def export(folder: Path, files: Mapping[str, str], *, force: bool = False) -> None:
    """Write `files` into `folder`, each atomically, and leave everything else there alone.

    All may read them: Prometheus and Grafana run as other users.

    Args:
        folder: Created if missing.
        files: Text by path within it.
        force: Replace files that differ.

    Raises:
        ExportError: A file cannot be written; or one exists with another text, without `force`:
            then nothing was written.
    """
    changed = [name for name, text in files.items() if _differs(folder / name, text)]
    if changed and not force:
        which = "it" if len(changed) == 1 else "them"
        raise ExportError(f"{folder} has its own {', '.join(changed)}: --force replaces {which}")
    for name, text in files.items():
        path = folder / name
        try:
            make_folder_for_all(path.parent)
            write_for_all(path, text.encode())
        except OSError as error:
            raise ExportError(f"cannot write {path}: {error.strerror or error}") from error


def _differs(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() != text.encode()
    except OSError:
        # Missing, or unreadable, which is reported when it cannot be written.
        return False


PROVIDER = "provisioning/dashboards/disagg-node.yaml"
_URL = re.compile(r"^(\s+url: ).*$", re.MULTILINE)
DATASOURCE = "provisioning/datasources/disagg-node.yaml"


def grafana_files(
    shipped: Traversable,
    folder: Path,
    datasource: str | None,
    prometheus: str,
    runbooks: RunbookLinks,
) -> dict[str, str]:
    """Return the content of an exported folder: text by path within it.

    `folder` is where the files will be: Grafana reads the dashboards from there. With a
    `datasource` the dashboards open on it; without, a data source of our own is provisioned too,
    which reads `prometheus` (a URL), and Grafana opens them on its default. `runbooks` is where
    their links lead.
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
        text = shipped.joinpath(DATASOURCE).read_text(encoding="utf-8")
        files[DATASOURCE] = _URL.sub(lambda line: f"{line[1]}{quoted(prometheus)}", text, 1)
    return files


def _set(text: str, datasource: str | None, runbooks: RunbookLinks) -> str:
    dashboard = json.loads(runbooks.in_panels(text))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "datasource" and datasource is not None:
            variable["current"] = {"selected": True, "text": datasource, "value": datasource}
        if variable["name"] == "runbooks":
            variable["query"] = runbooks.variable
    return json.dumps(dashboard, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
