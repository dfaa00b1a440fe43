"""Pods and what the kubelet gave them → which container has which of our devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from disagg_cluster.kube.nouns import Container, GpuHolder, Pod
from disagg_exporter.model import Device
from disagg_exporter.roles import Markers

MAX_PAGES = 8


@dataclass(frozen=True, slots=True)
class Tenant:
    """A container that holds GPUs of this node.

    `gpus` are UUIDs of our devices. `shares` are those of them that it has a share of only, and
    which share. `unresolved` are the kubelet's words for GPUs that none of our devices is surely
    the one of. `pod` and `container` are None where the API server does not tell.
    """

    namespace: str
    pod_name: str
    container_name: str
    gpus: tuple[str, ...] = ()
    shares: tuple[tuple[str, int], ...] = ()
    unresolved: tuple[str, ...] = ()
    pod: Pod | None = None
    container: Container | None = None

    @property
    def pages(self) -> tuple[str, ...]:
        """Where its metrics page could be: its declared ports at its pod's address."""
        if self.pod is None or self.container is None or not self.pod.pod_ip:
            return ()
        address = self.pod.pod_ip
        host = f"[{address}]" if ":" in address else address
        ports = list(dict.fromkeys(self.container.ports))
        system = self.container.env.get("DYN_SYSTEM_PORT", "")
        if system.isascii() and system.isdigit() and 0 < int(system[:6]) < 65536:
            ports.insert(0, int(system))
        return tuple(f"http://{host}:{port}/metrics" for port in ports[:MAX_PAGES])

    def markers(self, page: Sequence[str] = ()) -> Markers:
        """What is known of it for `roles.explain`; our annotations count as labels."""
        if self.pod is None or self.container is None:
            return Markers(name=self.pod_name, page=tuple(page))
        return Markers(
            argv=self.container.argv,
            env=self.container.env,
            labels={**self.pod.labels, **self.pod.annotations},
            page=tuple(page),
            name=self.pod_name,
        )


def tenants(
    pods: Iterable[Pod], holders: Iterable[GpuHolder], devices: Sequence[Device] = ()
) -> tuple[Tenant, ...]:
    """Join what the API server and the kubelet tell; the result is sorted by its names.

    A holder whose pod has finished holds nothing: older kubelets go on naming it. A UUID is taken
    as it is, even where it is none of `devices`; any other name needs them.
    """
    pod_by_name = _living(pods)
    devices_by_name = _names(devices)
    held: dict[tuple[str, str, str], dict[GpuHolder, str]] = {}
    for holder in holders:
        pod = pod_by_name.get((holder.namespace, holder.pod))
        if pod is not None and not pod.lives:
            continue
        key = (holder.namespace, holder.pod, holder.container)
        held.setdefault(key, {})[holder] = _resolve(holder.gpu, devices_by_name)
    return tuple(
        _tenant(key, resolved, pod_by_name.get(key[:2])) for key, resolved in sorted(held.items())
    )


def _tenant(
    key: tuple[str, str, str], resolved: Mapping[GpuHolder, str], pod: Pod | None
) -> Tenant:
    container = None
    if pod is not None:
        container = next((found for found in pod.containers if found.name == key[2]), None)
    return Tenant(
        *key,
        gpus=tuple(sorted({gpu for gpu in resolved.values() if gpu})),
        shares=tuple(
            sorted(
                (gpu, holder.share_of)
                for holder, gpu in resolved.items()
                if gpu and holder.share_of is not None
            )
        ),
        unresolved=tuple(sorted({holder.gpu for holder, gpu in resolved.items() if not gpu})),
        pod=pod,
        container=container,
    )


def _living(pods: Iterable[Pod]) -> dict[tuple[str, str], Pod]:
    """The pod of each name: a StatefulSet's next pod has the name of the one that goes."""
    found: dict[tuple[str, str], Pod] = {}
    for pod in pods:
        key = (pod.namespace, pod.name)
        before = found.get(key)
        if before is None or _standing(pod) >= _standing(before):
            found[key] = pod
    return found


def _standing(pod: Pod) -> tuple[bool, bool]:
    return pod.lives, not pod.deleted


def _names(devices: Sequence[Device]) -> dict[str, str]:
    """Every name by which a kubelet may call a device; none that two devices would have."""
    found: dict[str, str] = {}
    for device in devices:
        names = {device.gpu, device.device}
        # The DRA driver counts GPUs by the minor number of their device node.
        minor = device.device.removeprefix("nvidia")
        if minor != device.device and minor.isdecimal():
            names.add(f"gpu-{minor}")
        for name in names:
            found[name] = "" if name in found else device.gpu
    return found


def _resolve(told: str, devices_by_name: Mapping[str, str]) -> str:
    if told in devices_by_name:
        return devices_by_name[told]
    return told if told.startswith(("GPU-", "MIG-")) else ""
