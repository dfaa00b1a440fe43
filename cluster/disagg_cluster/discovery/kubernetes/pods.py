"""Pods of this node from the JSON of the API server, and which container holds which device; pure.

The JSON is controlled by everyone who may create a pod: everything is checked, and cut to a size.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from disagg_exporter.devices.pod_resources.wire import GpuHolder
from disagg_exporter.model import Device
from disagg_exporter.roles.evidence.environment import NAMES_READ

__all__ = ["Container", "GpuHolder", "Pod"]

FINISHED_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod, as its manifest declares it.

    `argv` is command and args; without a command the image's own program comes first, which is
    unknown. `env` has the values of variables on our list, and only those written in the manifest.
    Both may still hold secrets: they are used to determine roles, are never shown, and are not in
    the repr. `tls_ports` are those where its manifest configures HTTPS.
    """

    name: str
    image: str = ""
    argv: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    ports: tuple[int, ...] = ()
    tls_ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of this node, cut to what is used.

    `uid` is its identity: a pod of a StatefulSet returns under the same name with another.
    `annotations` are those of disagg-node only. `deleted` says that it is being deleted.
    """

    uid: str
    name: str
    namespace: str
    node: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, repr=False)
    annotations: Mapping[str, str] = field(default_factory=dict, repr=False)
    phase: str = ""
    pod_ip: str = ""
    containers: tuple[Container, ...] = ()
    deleted: bool = False

    @property
    def lives(self) -> bool:
        """Whether its containers may be running: not finished, though perhaps being deleted."""
        return self.phase not in FINISHED_PHASES


@dataclass(frozen=True, slots=True)
class Tenant:
    """The GPUs of this node that a container holds, whole or a share of each.

    `gpus` are UUIDs of our devices. `unresolved` are the kubelet's names of GPUs that cannot be
    matched with certainty to one of our devices.
    """

    gpus: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()


Tenants = Mapping[tuple[str, str, str], Tenant]
"""Holders of GPUs, by namespace, pod and container."""


def tenants(holders: Iterable[GpuHolder], devices: Sequence[Device]) -> Tenants:
    """Group the GPUs by container.

    A UUID is used as it is, even where it is none of `devices`; any other name is resolved with
    them. Older kubelets still name pods that have finished: only the API server knows.
    """
    devices_by_name = _names(devices)
    held: dict[tuple[str, str, str], dict[str, str]] = {}
    for holder in holders:
        key = (holder.namespace, holder.pod, holder.container)
        held.setdefault(key, {})[holder.gpu] = _resolve(holder.gpu, devices_by_name)
    return {
        key: Tenant(
            gpus=tuple(sorted({gpu for gpu in resolved.values() if gpu})),
            unresolved=tuple(sorted(name for name, gpu in resolved.items() if not gpu)),
        )
        for key, resolved in held.items()
    }


def _names(devices: Sequence[Device]) -> dict[str, str]:
    """Return every name by which a kubelet may call a device, without ambiguous ones."""
    found: dict[str, str] = {}
    for device in devices:
        names = {device.gpu, device.device}
        # The DRA driver of NVIDIA counts GPUs by the minor number of their device node.
        minor = device.device.removeprefix("nvidia")
        if minor != device.device and minor.isdecimal():
            names.add(f"gpu-{minor}")
        for name in names:
            found[name] = "" if name in found else device.gpu
    return found


def _resolve(name: str, devices_by_name: Mapping[str, str]) -> str:
    if name in devices_by_name:
        return devices_by_name[name]
    return name if name.startswith(("GPU-", "MIG-")) else ""


ANNOTATION_PREFIX = "disagg-node/"
UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
"""The identity that the API server gives to every pod."""

MAX_LABELS = 128
MAX_ANNOTATIONS = 16
MAX_CONTAINERS = 32
MAX_PORTS = 32
MAX_VALUE_CHARACTERS = 4096
# For all containers of one pod together; a JSON of KV connectors takes a few thousand.
MAX_ARGV_CHARACTERS = 32768

# Beside the variables for roles: where some engines serve their page.
_ENV_KEPT = NAMES_READ | {"DYN_SYSTEM_PORT"}
_SCRAPED_AT, _SCRAPED_BY = "prometheus.io/port", "prometheus.io/scheme"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")


def read_pod(value: object) -> Pod | None:
    """Return the pod that an object of the API describes; None if it describes none."""
    metadata = _mapping(member(value, "metadata"))
    uid, name, namespace = (_text(metadata, key) for key in ("uid", "name", "namespace"))
    if not UID.fullmatch(uid) or not _NAME.fullmatch(name) or not _NAME.fullmatch(namespace):
        return None
    spec, status = _mapping(member(value, "spec")), _mapping(member(value, "status"))
    phase = _text(status, "phase")
    scraped_by_tls = _scraped_by_tls(member(metadata, "annotations"))
    return Pod(
        uid=uid,
        name=name,
        namespace=namespace,
        node=_text(spec, "nodeName")[:253],
        labels=dict(_texts(member(metadata, "labels"), MAX_LABELS)),
        annotations=dict(
            _texts(member(metadata, "annotations"), MAX_ANNOTATIONS, prefix=ANNOTATION_PREFIX)
        ),
        phase=phase if phase in _PHASES else "",
        pod_ip=_address(_text(status, "podIP")),
        containers=tuple(_containers(member(spec, "containers"), scraped_by_tls)),
        deleted=bool(_text(metadata, "deletionTimestamp")),
    )


def _containers(containers: object, scraped: tuple[int, ...]) -> Iterator[Container]:
    room = MAX_ARGV_CHARACTERS
    for item in _list(containers)[:MAX_CONTAINERS]:
        container = _mapping(item)
        name = _text(container, "name")
        if not _NAME.fullmatch(name):
            continue
        argv: list[str] = []
        for word in (*_list(member(container, "command")), *_list(member(container, "args"))):
            # A cut command line could have another meaning.
            if not isinstance(word, str) or len(word) >= room:
                argv.clear()
                break
            room -= len(word) + 1
            argv.append(word)
        yield Container(
            name=name,
            image=_text(container, "image")[:512],
            argv=tuple(argv),
            env=dict(_environment(member(container, "env"))),
            ports=tuple(_ports(member(container, "ports"))),
            tls_ports=tuple(dict.fromkeys((*_tls_ports(container), *scraped))),
        )


def _environment(variables: object) -> Iterator[tuple[str, str]]:
    for item in _list(variables)[:4096]:
        variable = _mapping(item)
        name, value = variable.get("name"), variable.get("value")
        if isinstance(name, str) and isinstance(value, str) and name in _ENV_KEPT:
            yield name, value[:MAX_VALUE_CHARACTERS]


def _tls_ports(container: Mapping[str, object]) -> Iterator[int]:
    """Yield the ports where a probe, or the port's name, says HTTPS."""
    names = {
        _text(_mapping(item), "name"): _mapping(item).get("containerPort")
        for item in _list(member(container, "ports"))[:MAX_PORTS]
    }
    asked = [names.get(name) for name in names if name == "https" or name.startswith("https-")]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = _mapping(member(member(container, probe), "httpGet"))
        if _text(get, "scheme").upper() == "HTTPS":
            port = get.get("port")
            asked.append(names.get(port) if isinstance(port, str) else port)
    for port in asked:
        if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536:
            yield port


def _scraped_by_tls(annotations: object) -> tuple[int, ...]:
    """Return the port that annotations have a Prometheus scrape by HTTPS."""
    texts = _mapping(annotations)
    port = _text(texts, _SCRAPED_AT)
    known = port.isascii() and port.isdecimal() and len(port) <= 5
    by_tls = known and _text(texts, _SCRAPED_BY).lower() == "https"
    return (int(port),) if by_tls else ()


def _ports(ports: object) -> Iterator[int]:
    for item in _list(ports)[:MAX_PORTS]:
        declared = _mapping(item)
        port = declared.get("containerPort")
        if declared.get("protocol", "TCP") != "TCP" or isinstance(port, bool):
            continue
        if isinstance(port, int) and 0 < port < 65536:
            yield port


def _texts(texts: object, most: int, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in _mapping(texts).items():
        if most > 0 and isinstance(value, str) and key.startswith(prefix) and len(key) <= 317:
            most -= 1
            yield key, value[:MAX_VALUE_CHARACTERS]


def _address(text: str) -> str:
    """Return a possible pod address: never a loopback, multicast or link-local (metadata) one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    is_unreachable = address.is_loopback or address.is_link_local or address.is_multicast
    return "" if is_unreachable or address.is_unspecified else str(address)


def member(value: object, key: str) -> object:
    """Return the value of that key; None if there is none, or it is no object."""
    return _mapping(value).get(key)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _text(fields: Mapping[str, object], key: str) -> str:
    value = fields.get(key)
    return value if isinstance(value, str) else ""
