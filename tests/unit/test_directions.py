"""Which room may import which: checked by reading imports and by loading the core alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
EXPORTER = ROOT / "exporter" / "disagg_exporter"
CLUSTER = ROOT / "cluster" / "disagg_cluster"
PACKAGES = (EXPORTER, CLUSTER)
FULL_FOLDER = 15
FULL_MODULE_LINES = 310

# A room only imports rooms of floors below its own.
FLOORS = {
    "disagg_exporter": (
        {"errors", "inside_engine", "model"},
        {"collectors", "engine_pages", "landing", "roles", "steps"},
        {"attribution", "serving"},
        {"accounting", "capacity"},
        {"metrics"},
        {"http"},
        {"devices"},
    ),
    "disagg_cluster": (
        {"config", "host", "simulator"},
        {"demo", "lifecycle"},
        {"telemetry"},
        {"discovery", "supervisor", "switching"},
        {"continuity", "control", "launch"},
        {"nodefile"},
        {"prometheus"},
        {"deploy", "inspect"},
        # Beside the daemon, which thus may not import it: nodes do not forecast.
        {"daemon", "planner"},
        {"top", "tune"},
        {"cli"},
    ),
}

# Pure modules in rooms that are not pure as a whole; docs/architecture.md lists pure rooms.
CORE = [
    "disagg_cluster.daemon.status_line",
    "disagg_cluster.demo.standin",
    "disagg_cluster.demo.nodefile",
    "disagg_cluster.deploy.job_files",
    "disagg_cluster.deploy.install.plan",
    "disagg_cluster.deploy.install.texts",
    "disagg_cluster.discovery.finders.servers",
    "disagg_cluster.discovery.kubernetes.pods",
    "disagg_cluster.discovery.kubernetes.pod_store",
    "disagg_cluster.discovery.pod_steps.admission",
    "disagg_cluster.host.run_dir.layout",
    "disagg_cluster.inspect.doctor.findings",
    "disagg_cluster.inspect.phase_table",
    "disagg_cluster.inspect.report.figures",
    "disagg_cluster.inspect.report.html",
    "disagg_cluster.inspect.report.markdown",
    "disagg_cluster.launch.command",
    "disagg_cluster.launch.router_command",
    "disagg_cluster.nodefile.checks",
    "disagg_cluster.nodefile.draft",
    "disagg_cluster.nodefile.connections",
    "disagg_cluster.nodefile.web.checks",
    "disagg_cluster.planner.capacity.engine_pools",
    "disagg_cluster.planner.capacity.priced_costs",
    "disagg_cluster.planner.capacity.learned.prometheus_costs",
    "disagg_cluster.planner.forecast.forecaster",
    "disagg_cluster.planner.forecast.trend",
    "disagg_cluster.planner.history.load_history",
    "disagg_cluster.planner.history.prometheus_history",
    "disagg_cluster.planner.history.request_log",
    "disagg_cluster.planner.history.trace_csv",
    "disagg_cluster.planner.advice.cluster_plan",
    "disagg_cluster.planner.advice.plan_figure",
    "disagg_cluster.planner.advice.plan_text",
    "disagg_cluster.planner.advice.plan_values",
    "disagg_cluster.planner.advice.separation_text",
    "disagg_cluster.planner.advice.separation_values",
    "disagg_cluster.planner.compare.comparison",
    "disagg_cluster.planner.compare.comparison_text",
    "disagg_cluster.planner.compare.prometheus_minutes",
    "disagg_cluster.planner.diagnose.diagnose",
    "disagg_cluster.planner.diagnose.reading.rolling_diagnosis",
    "disagg_cluster.planner.diagnose.words.diagnosis_text",
    "disagg_cluster.planner.diagnose.words.diagnosis_values",
    "disagg_cluster.planner.outlook.back_test",
    "disagg_cluster.planner.outlook.figure",
    "disagg_cluster.planner.outlook.model_outlook",
    "disagg_cluster.planner.outlook.values",
    "disagg_cluster.planner.outlook.wording",
    "disagg_cluster.planner.plan.planner",
    "disagg_cluster.planner.rebalance.observed_load",
    "disagg_cluster.planner.rebalance.rebalance_text",
    "disagg_cluster.planner.rebalance.shadow",
    "disagg_cluster.planner.separation.separation",
    "disagg_cluster.supervisor.journal.journal_text",
    "disagg_cluster.telemetry.pages.label_values",
    "disagg_cluster.telemetry.snapshot",
    "disagg_cluster.top.screen.screen",
    "disagg_cluster.top.terminal.keys",
    "disagg_cluster.top.view.building",
    "disagg_exporter.capacity.node",
    "disagg_exporter.devices.pod_resources.wire",
    "disagg_exporter.http.server.admission",
    "disagg_exporter.http.server.request",
    "disagg_exporter.landing.view",
    "disagg_exporter.steps.fpm.message",
    "disagg_exporter.steps.messages",
    "disagg_exporter.steps.rows",
]
# Its parser cannot be imported without its HTTP server.
READ_BY_PROMETHEUS_CLIENT = {
    "disagg_exporter.engine_pages",
    "disagg_exporter.attribution",
    "disagg_exporter.serving",
}
EDGES = {
    "pynvml",
    "requests",
    "urllib3",
    "grpc",
    "vllm",
    "torch",
    "matplotlib",
    "click",
    "http.client",
    "http.server",
}
ONLY_USERS = {
    "pynvml": {"devices/nvml/device_source.py"},
    "click": {"cli"},
    "grpc": {
        "control/remote/grpc_client.py",
        "control/remote/server.py",
        "devices/pod_resources/client.py",
    },
    # The extra `grpc`: nothing else may need it.
    "google": {"control/remote/coding.py"},
    "grpc_health": {"control/remote/server.py"},
    "requests": {"prometheus/http_session.py", "prometheus/session_adapter.py"},
    "urllib3": {"prometheus/deadline_connection.py", "prometheus/http_session.py"},
    "subprocess": {
        "demo/real_vllm/environment.py",
        "demo/real_vllm/pair.py",
        "demo/sweeper.py",
        "deploy/install/service.py",
        "host/processes/interpreter.py",
        "supervisor/process/child_process.py",
    },
    # The extra `plot`: nothing else may need it.
    "matplotlib": {
        "planner/advice/plan_figure.py",
        "planner/compare/comparison_figure.py",
        "planner/outlook/back_test_figure.py",
        "planner/outlook/figure.py",
        "planner/outlook/pictures.py",
        "tune/tuning_figure.py",
    },
    "torch": {"demo/real_vllm/tiny_model.py"},
    "vllm": {"inside_engine"},
    # The extra `fpm`: nothing else may need it.
    "zmq": {"steps/fpm/subscriber.py"},
    "msgspec": {"steps/fpm/message.py"},
}


@cache
def _modules(folder: Path) -> dict[str, Path]:
    """Return every module of a package or of grafana/builders, by dotted name."""
    return {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in sorted(folder.rglob("*.py"))
    }


class _Content(NamedTuple):
    """The imports and the classes of a file."""

    imports: frozenset[str]
    classes: tuple[str, ...]


@cache
def _content(path: Path) -> _Content:
    """Return what a file has; of `from a import b` both a and a.b, as b may be a module."""
    imports, classes = set[str](), list[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            imports.add(node.module)
            imports.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ClassDef):
            classes.append(node.name)
    return _Content(frozenset(imports), tuple(classes))


def _folder(name: str, path: Path) -> str:
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def _room(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _edges(package: Path) -> Iterator[tuple[str, str]]:
    """Return which module imports which, within a package."""
    modules = _modules(package)
    for name, path in modules.items():
        yield from ((name, other) for other in _content(path).imports if other in modules)


def _leaves(package: Path) -> dict[str, list[Path]]:
    """Return every folder with its files, except `__init__.py`."""
    files = defaultdict(list)
    for path in _modules(package).values():
        if path.name != "__init__.py":
            files[str(path.parent.relative_to(ROOT))].append(path)
    return files


def test_the_exporter_never_imports_the_cluster() -> None:
    """The exporter can be used alone."""
    guilty = [
        name
        for name, path in _modules(EXPORTER).items()
        if any(other.split(".")[0] == "disagg_cluster" for other in _content(path).imports)
    ]

    assert guilty == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_room_imports_only_rooms_of_lower_floors(package: Path) -> None:
    floors = {
        f"{package.name}.{room}": floor
        for floor, rooms in enumerate(FLOORS[package.name])
        for room in rooms
    }
    upward = sorted(
        f"{one} imports {other}"
        for one, other in _edges(package)
        if _room(one) != _room(other)
        and _room(other) != package.name
        and floors[_room(other)] >= floors[_room(one)]
    )

    assert upward == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_two_folders_import_each_other(package: Path) -> None:
    """Folders within rooms, too; a name from a package's `__init__` counts as its origin's."""
    modules = _modules(package)
    between = {
        (_folder(one, modules[one]), _folder(other, modules[other]))
        for one, other in _edges(package)
        if modules[one].name != "__init__.py" and modules[other].name != "__init__.py"
    }

    assert {(a, b) for a, b in between if a != b and (b, a) in between} == set()


@pytest.mark.parametrize(
    "package", [*PACKAGES, ROOT / "grafana" / "builders", ROOT / "bench"], ids=str
)
def test_no_folder_is_overfull(package: Path) -> None:
    overfull = {
        folder: len(files) for folder, files in _leaves(package).items() if len(files) > FULL_FOLDER
    }

    assert overfull == {}


@pytest.mark.parametrize("folder", ["exporter", "cluster", "grafana", "helm", "scripts", "bench"])
def test_no_module_is_overlong(folder: str) -> None:
    lines = {path: path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py")}

    assert lines
    assert {path: n for path, n in lines.items() if n > FULL_MODULE_LINES} == {}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_root_holds_rooms_only(package: Path) -> None:
    flat = {path.name for path in package.glob("*.py")} - {"__init__.py", "errors.py"}

    assert flat == set()


def test_a_class_name_is_used_once_in_the_distribution() -> None:
    """Private ones and both packages included, so that a search for a name finds one thing."""
    places = defaultdict(list)
    for package in PACKAGES:
        for name, path in _modules(package).items():
            for each in _content(path).classes:
                places[each].append(name)

    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def _rooms() -> dict[str, str]:
    """Return every room in docs/architecture.md, `package.room`, with its kind."""
    rooms: dict[str, str] = {}
    package = ""
    for line in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            package = next((p.name for p in PACKAGES if p.name in line), "")
        elif package and line.startswith("| `"):
            names, kind = line.split("|")[1:3]
            for name in re.findall("`([^`]+)`", names):
                rooms[f"{package}.{name.removesuffix('/').removesuffix('.py')}"] = kind.strip()
    return rooms


def test_the_architecture_page_lists_exactly_the_existing_rooms() -> None:
    there = {_room(name) for package in PACKAGES for name in _modules(package)}

    assert set(_rooms()) == there - {package.name for package in PACKAGES}


def test_the_core_loads_no_driver_no_http_no_command_line() -> None:
    """A fresh interpreter that imports every core module loads none of the edges' libraries."""
    told = {name for name, kind in _rooms().items() if kind in ("core", "values")}
    pure = [
        name
        for package in PACKAGES
        for name in _modules(package)
        if _room(name) in told - READ_BY_PROMETHEUS_CLIENT
    ]
    script = (
        f"import sys\nfor m in {[*CORE, *pure]!r}: __import__(m)\nprint(*sys.modules, sep='\\n')"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()

    assert EDGES.intersection(loaded) == set()


@pytest.mark.parametrize("library", sorted(ONLY_USERS))
def test_each_edge_library_is_imported_only_by_its_allowed_modules(library: str) -> None:
    """So there is one place to read what a driver does."""
    users = set()
    for package in PACKAGES:
        for path in _modules(package).values():
            if any(name.split(".")[0] == library for name in _content(path).imports):
                inside = path.relative_to(package)
                top = inside.parts[0]
                users.add(top if top in ("cli", "inside_engine") else str(inside))

    assert users <= ONLY_USERS[library]
