"""Which room may know which: held by reading imports and by loading the core alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPORTER = ROOT / "exporter" / "disagg_exporter"
CLUSTER = ROOT / "cluster" / "disagg_cluster"

CORE = [
    "disagg_exporter.model",
    "disagg_exporter.errors",
    "disagg_exporter.accounting",
    "disagg_exporter.devices",
    "disagg_exporter.fullness",
    "disagg_exporter.podresources_wire",
    "disagg_exporter.roles",
    "disagg_exporter.landing.view",
    "disagg_exporter.silence",
    "disagg_exporter.step_messages",
    "disagg_exporter.stepsplit",
    "disagg_cluster.config",
    "disagg_cluster.problems",
    "disagg_cluster.markers_file",
    "disagg_cluster.nodefile.draft",
    "disagg_cluster.nodefile.checks",
    "disagg_cluster.install.plan",
    "disagg_cluster.install.unit",
    "disagg_cluster.report.figures",
    "disagg_cluster.report.html",
    "disagg_cluster.report.markdown",
    "disagg_cluster.webconfig.checks",
    "disagg_cluster.layout",
    "disagg_cluster.command",
    "disagg_cluster.router_command",
    "disagg_cluster.life",
    "disagg_cluster.crashes",
    "disagg_cluster.supervise",
    "disagg_cluster.resume",
    "disagg_cluster.journal_text",
    "disagg_cluster.gpusharing",
    "disagg_cluster.nodeview",
    "disagg_cluster.kube.join",
    "disagg_cluster.kube.pod_store",
    "disagg_cluster.kube.stream",
    "disagg_cluster.podsteps.plan",
    "disagg_cluster.podsteps.gate",
    "disagg_cluster.podsteps.complaints",
    "disagg_cluster.bridges.mapping",
    "disagg_cluster.statusline",
    "disagg_cluster.sim.drive",
    "disagg_cluster.views",
    "disagg_cluster.phasetable",
    "disagg_cluster.doctor.findings",
    "disagg_cluster.discovery.joining",
    "disagg_cluster.discovery.judging",
    "disagg_cluster.discovery.naming",
    "disagg_cluster.discovery.servers",
    "disagg_cluster.demo.costs",
    "disagg_cluster.demo.loadshape",
]
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


def test_the_core_loads_no_driver_no_http_no_command_line() -> None:
    """A fresh interpreter that imports every core room has none of the edges' libraries."""
    script = f"import sys\nfor m in {CORE!r}: __import__(m)\nprint(*sys.modules, sep='\\n')"
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
