"""Gathers the facts of this node: from its daemon, or by a scan of our own."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from disagg_cluster.config import Attach
from disagg_cluster.discovery.finders.own_addresses import is_own_address
from disagg_cluster.discovery.kubernetes.api_server import in_cluster
from disagg_cluster.discovery.kubernetes_discovery import NODE_NAME
from disagg_cluster.inspect.doctor.facts import NodeFacts
from disagg_cluster.inspect.doctor.other_daemons import other_daemons
from disagg_cluster.inspect.doctor.workers import read_workers
from disagg_cluster.inspect.node_scan import scan_node, view_of
from disagg_cluster.inspect.views import NodePage
from disagg_exporter.devices.pod_resources.client import KUBELET_SOCKET
from disagg_exporter.devices.source import DeviceSource


def surroundings(url: str, environ: Mapping[str, str]) -> NodeFacts:
    """Return what is known of the machine without asking a server."""
    return NodeFacts(
        url,
        in_cluster=in_cluster(environ) is not None,
        node_name=NODE_NAME in environ,
        kubelet_socket=KUBELET_SOCKET.exists(),
        grpc=importlib.util.find_spec("grpc") is not None,
    )


def of_daemon(facts: NodeFacts, page: NodePage) -> NodeFacts:
    """Return the facts with the daemon's page. Our own environment is not the daemon's."""
    pseudo = all(device.device == "cpu" for device in page.devices)
    return replace(
        facts,
        version=page.version,
        simulated=page.simulated,
        devices=len(page.devices),
        no_gpus="this node has none" if pseudo else "",
        engines=page.engines,
        collectors=page.collectors,
        left_out_engines=page.left_out_engines,
        in_cluster=False,
        kubelet_socket=False,
    )


def with_workers(facts: NodeFacts, view: bytes) -> NodeFacts:
    """Return the facts with the workers on the daemon's web page, and with other daemons here."""
    try:
        port = urlsplit(facts.url).port
    except ValueError:
        port = None
    here = is_own_address(urlsplit(facts.url).hostname or "")
    others = other_daemons(port) if here else ()
    return replace(facts, workers=read_workers(view), other_daemons=others)


def of_scan(facts: NodeFacts, source: DeviceSource, why_no_gpus: str, attach: Attach) -> NodeFacts:
    """Return the facts with our own observations."""
    scan = scan_node(source, attach)
    real = [device for device in scan.devices if not device.is_pseudo]
    return replace(
        facts,
        devices=len(scan.devices),
        no_gpus="" if real else why_no_gpus or "this node has none",
        engines=tuple(view_of(scan, engine) for engine in scan.engines),
        lost=scan.lost,
    )
