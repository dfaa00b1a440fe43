"""Finds engines among the pods of this node: their labels, addresses, arguments and GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from disagg_cluster.discovery.finders.servers import certificate_file, kind_of, port_argument
from disagg_cluster.discovery.kubernetes.pods import (
    Container,
    GpuHolder,
    Pod,
    Tenant,
    Tenants,
    tenants,
)
from disagg_cluster.discovery.observations.types import (
    Endpoint,
    Finder,
    Observation,
    Scan,
    port_of,
)
from disagg_exporter.model import Device
from disagg_exporter.roles.command_line.spanning import WORKER_INDEX, WORKER_INDEX_LABEL
from disagg_exporter.roles.evidence.command_line import parse_command_line
from disagg_exporter.roles.evidence.types import Markers
from disagg_exporter.roles.judge import explain

MAX_PORTS = 4
_SYSTEM_PORT = "DYN_SYSTEM_PORT"
_NOBODY: Tenants = {}

# The manifest may not name an image's program; the image's name mostly does.
_IMAGES = (
    (re.compile(r"router|proxy|epp|gateway|sidecar|frontend|operator|exporter|lmcache-server"), ""),
    (re.compile(r"dynamo|vllm-runtime|sglang-runtime|tensorrtllm-runtime"), "dynamo"),
    (re.compile(r"vllm|llm-d-cuda|llm-d:"), "vllm"),
    (re.compile(r"sglang"), "sglang"),
    (re.compile(r"tensorrt[-_]?llm|trtllm"), "trtllm"),
)


class PodFinder:
    """Reads the last reports of the API server and the kubelet.

    Args:
        pods: The pods of this node.
        holders: Which container holds which GPU.
        devices: The devices of this node.
        lost: Why either is unavailable; empty texts where nothing is wrong.
    """

    finder = Finder.PODS

    def __init__(
        self,
        pods: Callable[[], Sequence[Pod]],
        holders: Callable[[], Sequence[GpuHolder]],
        devices: Sequence[Device],
        lost: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._pods = pods
        self._holders = holders
        self._devices = tuple(devices)
        self._lost = lost

    def scan(self) -> Scan:
        """Return the engines of the live pods."""
        pods = [pod for pod in self._pods() if pod.lives]
        held = tenants(self._holders(), self._devices)
        seen = [observation for pod in pods for observation in pod_observations(pod, held)]
        unknown = (unresolved(pod, held) for pod in pods)
        lost = "; ".join(filter(None, (*self._lost(), *unknown)))
        return Scan(tuple(seen), lost)


def pod_observations(pod: Pod, held: Tenants = _NOBODY) -> Iterator[Observation]:
    """Yield the engines of a pod.

    A pod without a container that is surely an engine still lends its labels to a process in it
    that is.

    Args:
        pod: The pod, alive.
        held: Which containers hold GPUs.
    """
    engines = [(c, kind) for c in pod.containers if (kind := container_kind(pod, c))]
    for container, kind in engines:
        part = parse_command_line(container.argv, _resolving(pod, container)).part
        follows = part is not None and part.follows
        yield Observation(
            finder=Finder.PODS,
            kind=kind,
            endpoints=() if follows else tuple(_endpoints(pod, container, kind)),
            gpus=_tenant(pod, container, held).gpus or None,
            markers=Markers(
                argv=container.argv,
                env=container.env,
                labels={**pod.labels, **pod.annotations},
                name=pod.name,
            ),
            pod_uid=pod.uid,
            pod=pod.name,
            namespace=pod.namespace,
            container=container.name if len(engines) > 1 else "",
            draining=pod.deleted,
            part=part,
            certificate_file=certificate_file(container.argv, container.env, kind),
        )
    if not engines:
        gpus = {gpu for c in pod.containers for gpu in _tenant(pod, c, held).gpus}
        yield Observation(
            finder=Finder.PODS,
            gpus=tuple(sorted(gpus)) or None,
            markers=Markers(labels={**pod.labels, **pod.annotations}, name=pod.name),
            pod_uid=pod.uid,
            pod=pod.name,
            namespace=pod.namespace,
            draining=pod.deleted,
            sure=False,
        )


def unresolved(pod: Pod, held: Tenants) -> str:
    """Return which GPUs of a pod have kubelet names that match none of our devices."""
    names = [name for c in pod.containers for name in _tenant(pod, c, held).unresolved]
    return f"{pod.namespace}/{pod.name} holds {', '.join(names)}: no GPU we know" if names else ""


def container_kind(pod: Pod, container: Container) -> str:
    """Return the kind of engine a container runs by its manifest; empty if none, or unknown."""
    parsed = parse_command_line(container.argv, container.env)
    if parsed.has_engine:
        return kind_of(parsed.programs)
    markers = Markers(container.argv, container.env, {**pod.labels, **pod.annotations})
    if not explain(markers).is_engine:
        return ""
    folder, name = ("", *container.image.lower().split("/"))[-2:]
    # NVIDIA's own is called tensorrt-llm/release.
    image = f"{folder}/{name}" if name.startswith("release") else name
    return next((kind for pattern, kind in _IMAGES if pattern.search(image)), "")


def _resolving(pod: Pod, container: Container) -> Mapping[str, str]:
    """Return a container's variables, including the one that LeaderWorkerSet sets from a label."""
    index = pod.labels.get(WORKER_INDEX_LABEL)
    return container.env if index is None else {WORKER_INDEX: index, **container.env}


def _endpoints(pod: Pod, container: Container, kind: str) -> Iterator[Endpoint]:
    """Yield where its page may be: not all ports that engines declare accept a GET."""
    if not pod.pod_ip:
        return
    system = port_of(container.env.get(_SYSTEM_PORT, ""))
    ports = [] if system is None else [system]
    asked = port_argument(container.argv, kind)
    if asked is not None and (not container.ports or asked in container.ports):
        ports.append(asked)
    secure = certificate_file(container.argv, container.env, kind) is not None
    for port in dict.fromkeys(ports or container.ports[:MAX_PORTS]):
        if 0 < port < 65536:
            tls = port != system and (secure or port in container.tls_ports)
            yield Endpoint(pod.pod_ip, port, tls=tls)


def _tenant(pod: Pod, container: Container, held: Tenants) -> Tenant:
    return held.get((pod.namespace, pod.name, container.name), Tenant())
