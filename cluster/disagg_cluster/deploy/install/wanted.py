"""Which files an installation has, and what stands in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from disagg_cluster.config import NodeConfig
from disagg_cluster.deploy.install.places import Part, Places
from disagg_cluster.deploy.install.plan import Wanted
from disagg_cluster.deploy.install.unit import unit_text
from disagg_cluster.prometheus.local_server import Target, scrape_config
from disagg_exporter.http.listen import ListenAddress


@dataclass(frozen=True, slots=True)
class Shipped:
    """What comes from our packages: rules by name, and Grafana's files by name."""

    rules: Mapping[str, str]
    grafana: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Node:
    """The node to install: what its file says, that file's text, and how its page is reached."""

    config: NodeConfig
    text: str
    scheme: str
    program: Path
    user: str


def wanted(
    places: Places, parts: Iterable[Part], node: Node, shipped: Shipped
) -> tuple[Wanted, ...]:
    """All files of the parts, in the order in which they are best read."""
    chosen = set(parts)
    found: list[Wanted] = []
    if Part.SERVICE in chosen:
        unit = unit_text(node.config, node.program, places.node_file, places.environment, node.user)
        found += [Wanted(places.node_file, node.text, theirs=True), Wanted(places.unit, unit)]
    if Part.PROMETHEUS in chosen:
        found += _prometheus(places, node, shipped)
    if Part.GRAFANA in chosen:
        for name, text in shipped.grafana.items():
            inside = Path(name)
            provisioned = inside.parts[0] == "provisioning"
            where = places.provisioning if provisioned else places.grafana
            rest = Path(*inside.parts[1:]) if provisioned else inside
            found.append(Wanted(where / rest, text))
    return tuple(found)


def _prometheus(places: Places, node: Node, shipped: Shipped) -> Iterator[Wanted]:
    rules = str(places.prometheus / "rules" / "*.yaml")
    text = scrape_config([_target(node)], rule_files=[rules])
    if node.scheme == "https":
        text = _encrypted(text)
    if places.system:
        # A Prometheus of one's own has a file of its own; ours is for it to include.
        text = yaml.safe_dump({"scrape_configs": yaml.safe_load(text)["scrape_configs"]})
        yield Wanted(places.prometheus / "scrape.yaml", text)
    else:
        yield Wanted(places.prometheus / "prometheus.yaml", text)
    for name, rule in shipped.rules.items():
        yield Wanted(places.prometheus / name, rule)


def _target(node: Node) -> Target:
    address = node.config.listen.metrics_address
    host = "127.0.0.1" if address.host in ("", "0.0.0.0", "::") else address.host
    return Target(str(ListenAddress(host, address.port)), node.config.node, node.config.cluster)


def _encrypted(text: str) -> str:
    config = yaml.safe_load(text)
    for job in config["scrape_configs"]:
        job["scheme"] = "https"
    return yaml.safe_dump(config, sort_keys=False)
