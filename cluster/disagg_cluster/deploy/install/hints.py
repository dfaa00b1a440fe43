"""What a person does next, and how an installation is undone: commands to read and to copy."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from disagg_cluster.deploy.install.places import Part, Places
from disagg_cluster.deploy.install.plan import Action, Step


def next_steps(places: Places, parts: Iterable[Part], scheme: str) -> tuple[str, ...]:
    """What is left to do once the files are written."""
    chosen, found = set(parts), []
    prometheus = places.prometheus
    if Part.SERVICE in chosen:
        found.append(f"disagg-node config check {_word(places.node_file)}")
        if not places.system:
            found.append(f"systemctl link {_word(places.unit)}")
        found.append("systemctl daemon-reload && systemctl enable --now disagg-node")
    if Part.PROMETHEUS in chosen and places.system:
        rules = prometheus / "rules" / "*.yaml"
        found += [
            f"# in prometheus.yml, under rule_files: {rules}",
            f"# and under scrape_config_files: {prometheus / 'scrape.yaml'} (before Prometheus "
            "2.43 copy its job under scrape_configs)",
            "systemctl reload prometheus",
        ]
    elif Part.PROMETHEUS in chosen:
        found.append(f"prometheus --config.file={_word(prometheus / 'prometheus.yaml')}")
    if Part.PROMETHEUS in chosen and scheme == "https":
        found.append("# the page is encrypted: add tls_config and basic_auth, see docs/serving.md")
    if Part.GRAFANA in chosen and places.system:
        found.append("systemctl restart grafana-server")
    elif Part.GRAFANA in chosen:
        found.append(f"# start Grafana with GF_PATHS_PROVISIONING={_word(places.provisioning)}")
    return tuple(found)


def undoing(places: Places, steps: Iterable[Step]) -> tuple[str, ...]:
    """The commands that take an installation away; engines that run are ended first."""
    there = [step.path for step in steps]
    if not there:
        return ()
    found = []
    if places.unit in there:
        found += [
            "systemctl disable --now disagg-node",
            f"disagg-node stop --workers --config {_word(places.node_file)}",
        ]
    words = " ".join(_word(path) for path in (*there, places.manifest))
    found.append(f"rm -f {words}")
    if places.unit in there:
        found.append("systemctl daemon-reload")
    return tuple(found)


def leftovers(steps: Iterable[Step]) -> tuple[str, ...]:
    """How to remove what earlier installs wrote and nobody needs now."""
    old = [_word(step.path) for step in steps if step.action is Action.LEFT]
    return (f"rm {' '.join(old)}",) if old else ()


def _word(path: Path) -> str:
    return shlex.quote(str(path))
