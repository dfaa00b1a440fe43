"""The dashboards that we ship, as files for a Grafana."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from disagg_exporter.errors import DisaggError

PROVIDER = "provisioning/dashboards/disagg-node.yaml"
DATASOURCE = "provisioning/datasources/disagg-node.yaml"


class ExportError(DisaggError):
    """A file that cannot be written, or must not be; its text says which and why."""


def grafana_files(
    shipped: Traversable, folder: Path, datasource: str | None = None
) -> dict[str, str]:
    """What an exported folder holds: text by path within it.

    `folder` is where the files will lie: Grafana is told to read the dashboards from there. With a
    `datasource` the dashboards open on it; without, a data source of our own is provisioned too,
    and Grafana opens them on its default.
    """
    files = {
        f"dashboards/{entry.name}": _opening_on(datasource, entry.read_text(encoding="utf-8"))
        for entry in sorted(shipped.joinpath("dashboards").iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".json")
    }
    provider = yaml.safe_load(shipped.joinpath(PROVIDER).read_text(encoding="utf-8"))
    provider["providers"][0]["options"]["path"] = str(folder / "dashboards")
    files[PROVIDER] = yaml.safe_dump(provider, sort_keys=False)
    if datasource is None:
        files[DATASOURCE] = shipped.joinpath(DATASOURCE).read_text(encoding="utf-8")
    return files


def write(folder: Path, files: Mapping[str, str], *, force: bool = False) -> None:
    """Write `files` into `folder`, each in one go, and leave everything else there alone.

    Raises:
        ExportError: a file cannot be written; or one is there with another text, and no `force`:
            then nothing was written.
    """
    changed = [name for name, text in files.items() if _differs(folder / name, text)]
    if changed and not force:
        raise ExportError(f"{folder} has its own {', '.join(changed)}: --force replaces them")
    for name, text in files.items():
        path = folder / name
        # Grafana looks at the folder every few seconds and must not find half a file.
        part = path.with_name(f"{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise ExportError(f"cannot write {path}: {error.strerror or error}") from error


def _differs(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() != text.encode()
    except OSError:
        # Not there; what cannot be read is told when it cannot be written.
        return False


def _opening_on(datasource: str | None, text: str) -> str:
    if datasource is None:
        return text
    dashboard = json.loads(text)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "datasource":
            variable["current"] = {"selected": True, "text": datasource, "value": datasource}
    return json.dumps(dashboard, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
