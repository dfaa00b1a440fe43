"""Which room may know which: held by reading imports and by loading the core alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPORTER = ROOT / "exporter" / "disagg_exporter"
CLUSTER = ROOT / "cluster" / "disagg_cluster"

# Rooms within rooms; those of the house itself are told by docs/architecture.md.
CORE = [
    "disagg_exporter.podresources_wire",
    "disagg_exporter.http.admission",
    "disagg_exporter.http.request_head",
    "disagg_exporter.landing.view",
    "disagg_exporter.step_messages",
    "disagg_cluster.config",
    "disagg_cluster.nodefile.draft",
    "disagg_cluster.nodefile.checks",
    "disagg_cluster.install.plan",
    "disagg_cluster.install.unit",
    "disagg_cluster.report.figures",
    "disagg_cluster.report.html",
    "disagg_cluster.report.markdown",
    "disagg_cluster.webconfig.checks",
    "disagg_cluster.kube.join",
    "disagg_cluster.kube.pod_store",
    "disagg_cluster.kube.stream",
    "disagg_cluster.podsteps.plan",
    "disagg_cluster.podsteps.gate",
    "disagg_cluster.podsteps.complaints",
    "disagg_cluster.bridges.mapping",
    "disagg_cluster.statusline",
    "disagg_cluster.sim.drive",
    "disagg_cluster.phasetable",
    "disagg_cluster.doctor.findings",
    "disagg_cluster.discovery.joining",
    "disagg_cluster.discovery.judging",
    "disagg_cluster.discovery.naming",
    "disagg_cluster.discovery.servers",
    "disagg_cluster.telemetry.label_values",
    "disagg_cluster.demo.costs",
    "disagg_cluster.demo.loadshape",
]
# Its parser cannot be had without its HTTP server.
READ_BY_PROMETHEUS_CLIENT = {
    "disagg_exporter.pages",
    "disagg_exporter.router_pages",
    "disagg_exporter.sources",
    "disagg_cluster.pageview",
}
EDGES = {"pynvml", "requests", "grpc", "vllm", "torch", "click", "http.client", "http.server"}
ONLY_USERS = {
    "pynvml": {"nvml.py"},
    "click": {"cli"},
    "grpc": {"podresources.py"},
    "subprocess": {"worker.py", "vllm_environment.py", "realpair.py"},
    "torch": {"tiny_model.py"},
    "vllm": {"inside_engine"},
    # The extra `fpm`: nothing else may need it.
    "zmq": {"subscriber.py"},
    "msgspec": {"message.py"},
}


def _modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


def test_the_exporter_never_imports_the_cluster() -> None:
    """The exporter can be taken by itself."""
    guilty = [
        path.name
        for path in _modules(EXPORTER)
        if any(name.split(".")[0] == "disagg_cluster" for name in _imports(path))
    ]

    assert guilty == []


def _rooms() -> dict[str, str]:
    """Every room that docs/architecture.md tells of, `package.room`, with its kind."""
    rooms: dict[str, str] = {}
    package = ""
    for line in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            package = next((p.name for p in (EXPORTER, CLUSTER) if p.name in line), "")
        elif package and line.startswith("| `"):
            names, kind = line.split("|")[1:3]
            for name in re.findall("`([^`]+)`", names):
                rooms[f"{package}.{name.removesuffix('/').removesuffix('.py')}"] = kind.strip()
    return rooms


def test_the_architecture_tells_of_every_room_and_of_no_other() -> None:
    there = {
        f"{package.name}.{path.relative_to(package).parts[0].removesuffix('.py')}"
        for package in (EXPORTER, CLUSTER)
        for path in _modules(package)
    }

    assert set(_rooms()) == {room for room in there if not room.endswith(".__init__")}


def test_the_core_loads_no_driver_no_http_no_command_line() -> None:
    """A fresh interpreter that imports every core room has none of the edges' libraries."""
    told = {name for name, kind in _rooms().items() if kind in ("core", "nouns")}
    rooms = [*CORE, *sorted(told - READ_BY_PROMETHEUS_CLIENT)]
    script = f"import sys\nfor m in {rooms!r}: __import__(m)\nprint(*sys.modules, sep='\\n')"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()

    assert EDGES.intersection(loaded) == set()


@pytest.mark.parametrize("library", sorted(ONLY_USERS))
def test_each_edge_library_has_its_only_users(library: str) -> None:
    """Who wants to know what a driver does has one place to read."""
    users = set()
    for root in (EXPORTER, CLUSTER):
        for path in _modules(root):
            if any(name.split(".")[0] == library for name in _imports(path)):
                inside = path.relative_to(root)
                users.add(
                    inside.parts[0] if inside.parts[0] in ("cli", "inside_engine") else path.name
                )

    assert users <= ONLY_USERS[library]
